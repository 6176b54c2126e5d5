"""Settings come from three places, in order, and nothing misspelt is forgiven."""

from pathlib import Path
from typing import Annotated, Literal

import pytest
from pydantic import Field

from kvatlas_chassis import HostPort, ServiceSettings, Settings, SettingsError, load_settings


class Rank(Settings):
    events: str
    worker_id: int


class ExampleSettings(ServiceSettings):
    model: str
    block_size: int = Field(default=16, ge=1)
    listen: HostPort = HostPort("127.0.0.1", 0)
    indexer: tuple[HostPort, ...] = ()
    log: tuple[str, ...] = ()
    mode: Literal["fast", "exact"] = "fast"
    tiers: bool = False
    worker_id: Annotated[int, Field(ge=0)] | None = None
    engines: tuple[Rank, ...] = ()
    labels: dict[str, str] = Field(default_factory=dict)


def load(*argv: str, **environ: str) -> ExampleSettings:
    return load_settings(
        ExampleSettings,
        service="mock-engine",
        argv=argv,
        environ=environ,
        description="An example.",
    )


def write(tmp_path: Path, text: str) -> str:
    file = tmp_path / "settings.yaml"
    file.write_text(text)
    return str(file)


def refusal(*argv: str, **environ: str) -> str:
    with pytest.raises(SettingsError) as caught:
        load(*argv, **environ)
    assert caught.value.exit_status == 2
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_flag_beats_the_environment_and_the_environment_beats_the_file(tmp_path: Path) -> None:
    file = write(tmp_path, "model: from-file\nblock_size: 32\nmode: exact\n")
    settings = load(
        "--config",
        file,
        "--model",
        "from-flag",
        KVATLAS__MOCK_ENGINE__MODEL="from-environment",
        KVATLAS__MOCK_ENGINE__BLOCK_SIZE="64",
    )
    assert (settings.model, settings.block_size, settings.mode) == ("from-flag", 64, "exact")


def test_lists_come_from_repeated_flags_from_one_flag_and_from_commas() -> None:
    expected = (HostPort("a", 1), HostPort("b", 2))
    assert load("--model", "m", "--indexer", "a:1", "--indexer", "b:2").indexer == expected
    assert load("--model", "m", "--indexer", "a:1", "b:2").indexer == expected
    assert load("--model", "m", KVATLAS__MOCK_ENGINE__INDEXER="a:1, b:2").indexer == expected


def test_hosts_of_one_url_stay_together_where_commas_separate_urls() -> None:
    logs = "kafka://a:1,b:2, c:3 ,grpc:,redis://d:4/0,grpc://e:5,f:6"
    found = load("--model", "m", KVATLAS__MOCK_ENGINE__LOG=logs).log
    assert found == ("kafka://a:1,b:2,c:3", "grpc:", "redis://d:4/0", "grpc://e:5,f:6")


def test_keys_of_a_file_may_be_written_with_dashes_in_tables_too(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        "model: m\nblock-size: 8\nengines:\n- {events: 'tcp://h:1', worker-id: 7}\n"
        "labels: {node-name: n1}\n",
    )
    settings = load("--config", file)
    assert settings.block_size == 8
    assert settings.engines == (Rank(events="tcp://h:1", worker_id=7),)
    assert settings.labels == {"node-name": "n1"}


def test_booleans_have_two_flags() -> None:
    assert load("--model", "m", "--tiers").tiers
    assert not load("--model", "m", "--no-tiers", KVATLAS__MOCK_ENGINE__TIERS="true").tiers


def test_a_required_setting_that_is_missing_is_named_by_its_flag() -> None:
    assert "--model is required" in refusal()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("model: m\nblok_size: 3\n", "did you mean block_size?"),
        ("model: m\nengines: [{events: e, worker_id: 1, wrker: 2}]\n", "engines.0.wrker"),
        ("model: m\nblock_size: zero\n", "block_size"),
        ("- a\n- b\n", "a table of settings is expected"),
        ("model: [\n", "not YAML"),
    ],
)
def test_a_bad_file_is_refused_by_name(tmp_path: Path, text: str, expected: str) -> None:
    file = write(tmp_path, text)
    with pytest.raises(SettingsError, match=expected.replace("?", r"\?")) as caught:
        load("--config", file)
    assert "settings.yaml" in str(caught.value)


def test_a_file_that_is_not_there_is_named() -> None:
    assert "nowhere.yaml: No such file" in refusal("--config", "nowhere.yaml")


def test_an_unknown_variable_of_ours_is_refused_and_kubernetes_own_are_not() -> None:
    message = refusal("--model", "m", KVATLAS__MOCK_ENGINE__BLOCKSIZE="1")
    assert "KVATLAS__MOCK_ENGINE__BLOCK_SIZE?" in message
    settings = load("--model", "m", KVATLAS_MOCK_ENGINE_PORT="tcp://10.0.0.1:80")
    assert settings.block_size == 16


def test_a_variable_of_another_service_is_not_ours_to_check() -> None:
    assert load("--model", "m", KVATLAS__INDEXER__LISTEN="h:1").model == "m"


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (("--modell", "m"), "--modell"),
        (("--model", "m", "--block-size", "0"), "block_size"),
        (("--model", "m", "--listen", "7001"), "'7001' is not HOST:PORT"),
        (("--model", "m", "--mode", "slow"), "mode"),
        (("--model",), "--model"),
    ],
)
def test_a_bad_flag_is_refused_by_name(argv: tuple[str, ...], expected: str) -> None:
    assert expected in refusal(*argv)


def test_all_problems_are_named_at_once() -> None:
    message = refusal("--block-size", "0", "--mode", "slow")
    assert "--model is required" in message
    assert "block_size" in message
    assert "mode" in message


def test_help_names_every_flag_and_its_default(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        load("--help")
    assert caught.value.code == 0
    text = capsys.readouterr().out
    for flag in ("--model", "--block-size", "--indexer", "--config", "--grace-s"):
        assert flag in text
    assert "--engines" not in text
    assert "(default: 16)" in text
    for said in ("--block-size N", "--worker-id N", "--listen H:P", "--mode fast|exact"):
        assert said in text
    assert "KVATLAS__MOCK_ENGINE__SETTING" in text


def test_settings_cannot_be_changed() -> None:
    settings = load("--model", "m")
    with pytest.raises(ValueError, match="frozen"):
        settings.model = "other"  # pyright: ignore[reportAttributeAccessIssue] - that is the test
