"""The settings of `kvatlas indexer`."""

from pathlib import Path

import pytest

from kvatlas_chassis import HostPort, SettingsError, load_settings
from kvatlas_indexer.settings import IndexerSettings

REQUIRED = ["--model", "m", "--block-size", "16"]


def load(*words: str, environ: dict[str, str] | None = None) -> IndexerSettings:
    return load_settings(
        IndexerSettings, service="indexer", argv=words, environ=environ or {}, description=""
    )


def test_the_model_and_the_block_size_are_required_and_all_else_has_a_default() -> None:
    settings = load(*REQUIRED)
    assert (settings.log, settings.cell, settings.threads) == (("grpc:",), "default", 1)
    with pytest.raises(SettingsError, match="--model is required"):
        load("--block-size", "16")
    with pytest.raises(SettingsError, match="--block-size is required"):
        load("--model", "m")


def test_several_logs_feed_one_indexer() -> None:
    settings = load(*REQUIRED, "--log", "grpc:", "--log", "redis://127.0.0.1:6379")
    assert settings.log == ("grpc:", "redis://127.0.0.1:6379")


def test_every_setting_is_a_flag_a_variable_and_a_key_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "indexer.yaml"
    file.write_text("model: m\nblock-size: 16\nlease-ms: 5000\nlisten: 127.0.0.1:1\n")
    environ = {"KVATLAS__INDEXER__LISTEN": "127.0.0.1:2", "KVATLAS__INDEXER__THREADS": "3"}
    settings = load("--config", str(file), "--threads", "4", environ=environ)
    assert settings.lease_ms == 5_000
    assert settings.listen == HostPort("127.0.0.1", 2)
    assert settings.threads == 4


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--log", "memory:"], "memory:"),
        (["--log", "kafka://h"], "kafka:"),
        (["--log", "http://127.0.0.1"], "http:"),
        (["--log", "redis://127.0.0.1:notaport"], "redis"),
        (["--log", "grpc:", "--log", "grpc:"], "twice"),
        (["--listen", "nowhere"], "nowhere"),
        (["--snapshot-interval-s", "0"], "snapshot_interval_s"),
        (["--peer", "nowhere"], "nowhere"),
        (["--block-size", "0"], "block_size"),
        (["--threads", "0"], "threads"),
        (
            ["--memory-bytes-max", "2000000", "--memory-bytes-kept", "2000001"],
            "more than memory_bytes_max",
        ),
        (["--memory-bytes-max", "1000000"], "memory_bytes_max"),
    ],
)
def test_an_invalid_setting_is_refused_by_name(words: list[str], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        load(*REQUIRED, *words)
