"""From flags and files to the engine ranks that are followed."""

from pathlib import Path
from typing import Any

import pytest

from kvatlas_chassis import SettingsError, load_settings
from kvatlas_publisher.settings import EngineSpec, PublisherSettings, engine_specs

FLAGS = {
    "--events": "tcp://127.0.0.1:5557",
    "--worker-id": "7",
    "--model": "m",
    "--block-size": "16",
    "--log": "redis://h:1",
}


def specs(*argv: str, environ: dict[str, str] | None = None) -> list[EngineSpec]:
    settings = load_settings(
        PublisherSettings,
        service="publisher",
        argv=argv,
        environ=environ or {},
        description="",
    )
    return engine_specs(settings)


def flags(**changes: str | None) -> list[str]:
    named = FLAGS | {"--" + name.replace("_", "-"): value for name, value in changes.items()}
    return [word for name, value in named.items() if value is not None for word in (name, value)]


def test_flags_describe_one_rank() -> None:
    (spec,) = specs(*flags(engine_url="http://h:8000/", engine="sglang"))
    assert (spec.engine, str(spec.events), spec.replay) == ("sglang", "tcp://127.0.0.1:5557", None)
    assert (spec.worker_id, spec.dp_rank, spec.cell) == (7, None, "default")
    assert (spec.engine_url, spec.advertised_url) == ("http://h:8000", "http://h:8000")


def test_the_advertised_url_replaces_the_engine_url() -> None:
    (spec,) = specs(
        *flags(engine_url="http://127.0.0.1:8000", advertise_engine_url="http://pod-3:8000")
    )
    assert (spec.engine_url, spec.advertised_url) == ("http://127.0.0.1:8000", "http://pod-3:8000")


def test_log_is_repeatable_and_all_of_them_are_opened() -> None:
    (spec,) = specs(*flags(), "--log", "grpc://a:1,b:2")
    assert spec.logs == ("redis://h:1", "grpc://a:1,b:2")
    assert len(spec.open_writers()) == 3


@pytest.mark.parametrize("events", ["tcp://*:5557", "tcp://0.0.0.0:5557", "tcp://[::]:5557"])
def test_a_wildcard_makes_us_listen(events: str) -> None:
    (spec,) = specs(*flags(events=events))
    assert spec.events.binds


@pytest.mark.parametrize("missing", ["events", "worker_id", "model", "block_size", "log"])
def test_what_is_required_is_named(missing: str) -> None:
    with pytest.raises(SettingsError, match=f"--{missing.replace('_', '-')} is required"):
        specs(*flags(**{missing: None}))


def test_all_that_is_required_is_named_at_once() -> None:
    with pytest.raises(SettingsError) as caught:
        specs("--worker-id", "0", "--model", "")
    missing = "; ".join(
        f"--{name} is required" for name in ("events", "model", "block-size", "log")
    )
    assert str(caught.value) == f"kvatlas publisher: {missing}"


def test_the_environment_is_read() -> None:
    (spec,) = specs(*flags(worker_id=None), environ={"KVATLAS__PUBLISHER__WORKER_ID": "9"})
    assert spec.worker_id == 9


def write(directory: Path, text: str) -> str:
    file = directory / "publisher.yaml"
    file.write_text(text)
    return str(file)


def test_a_file_lists_engines_that_share_what_stands_above(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        """
model: m
block-size: 16
log: [redis://h:1]
labels: {zone: a}
engines:
  - {events: "tcp://a:1", worker-id: 1, dp-rank: 0, engine-url: "http://a:8000"}
  - {events: "tcp://a:2", worker_id: 1, dp_rank: 1, engine: sglang, labels: {rack: r}}
""",
    )
    one, two = specs("--config", file)
    assert (one.worker_id, one.dp_rank, one.engine) == (1, 0, "vllm")
    assert (two.worker_id, two.dp_rank, two.engine) == (1, 1, "sglang")
    assert two.labels == {"zone": "a", "rack": "r"}
    assert (two.model, two.block_size, two.logs) == ("m", 16, ("redis://h:1",))


@pytest.mark.parametrize(
    ("engines", "says"),
    [
        ("[{events: 'tcp://a:1'}]", "engines.0.worker_id"),
        ("[{events: 'tcp://a:1', worker_id: 1, colour: red}]", "engines.0.colour"),
        ("[{events: a, worker_id: 1}]", "'a' is neither tcp://HOST:PORT nor ipc://PATH"),
        (
            (
                "[{events: 'tcp://a:1', worker_id: 1, dp_rank: 0}, "
                "{events: 'tcp://a:2', worker_id: 1, dp_rank: 0}]"
            ),
            "worker 1/0 is listed twice",
        ),
    ],
)
def test_a_wrong_entry_is_named(tmp_path: Path, engines: str, says: str) -> None:
    text = f"model: m\nblock_size: 16\nlog: [redis://h:1]\nengines: {engines}\n"
    with pytest.raises(SettingsError) as caught:
        specs("--config", write(tmp_path, text))
    assert says in str(caught.value)


def test_flags_of_one_rank_do_not_go_with_a_list(tmp_path: Path) -> None:
    text = "engines: [{events: 'tcp://a:1', worker_id: 1}]\n"
    with pytest.raises(SettingsError, match="cannot be used with engines:"):
        specs(*flags(), "--config", write(tmp_path, text))


@pytest.mark.parametrize(
    "changes",
    [
        {"events": "http://a:1"},
        {"events": "tcp://a:99999"},
        {"replay": "tcp://*:5558"},
        {"engine_url": "a:8000"},
        {"block_size": "0"},
        {"dp_rank": "-1"},
        {"engine": "trtllm"},
    ],
)
def test_an_impossible_value_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(SettingsError):
        specs(*flags(**changes))
