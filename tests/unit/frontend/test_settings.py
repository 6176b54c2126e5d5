"""Settings: what is missing or impossible is told before anything starts."""

from pathlib import Path

import pytest

from kvatlas_chassis import FatalError, HostPort, SettingsError, load_settings
from kvatlas_frontend.main import load_tokenizer
from kvatlas_frontend.settings import FrontendSettings

NEEDED = ("--model", "m", "--block-size", "16", "--indexer", "a:1", "b:2")


def load(*argv: str) -> FrontendSettings:
    return load_settings(
        FrontendSettings, service="frontend", argv=argv, environ={}, description="d"
    )


def test_the_needed_ones_are_enough() -> None:
    settings = load(*NEEDED)
    assert settings.indexer == (HostPort("a", 1), HostPort("b", 2))
    assert (settings.policy, settings.tokenizer) == ("kv-aware", "engine")


@pytest.mark.parametrize(
    ("argv", "named"),
    [
        ((), "--model is required"),
        (("--polcy", "kv-aware"), "--polcy"),
        (("--block-size", "0"), "block_size"),
        (("--indexer", "a:1", "a:1"), "the same indexer is named twice"),
        (("--indexer", "a"), "is not HOST:PORT"),
        (("--deadline-ms", "0"), "deadline_ms"),
    ],
)
def test_what_is_wrong_is_named(argv: tuple[str, ...], named: str) -> None:
    words = argv if not argv else (*NEEDED[:4], *(() if "--indexer" in argv else NEEDED[4:]), *argv)
    with pytest.raises(SettingsError) as raised:
        load(*words)
    assert named in str(raised.value)


def test_a_missing_tokenizer_ends_the_start_with_one_line(tmp_path: Path) -> None:
    for name in (tmp_path, tmp_path / "no.json"):
        with pytest.raises(FatalError, match="No such file") as raised:
            load_tokenizer(str(name))
        assert str(name) in str(raised.value)


def test_an_engine_needs_no_files() -> None:
    assert load_tokenizer("engine") == (None, None)
