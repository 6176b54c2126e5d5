"""Settings of the mock engine: what cannot be is said at start, in a line."""

import pytest

from kvatlas_chassis import SettingsError, load_settings
from kvatlas_mocker.settings import MockEngineSettings


def load(*flags: str) -> MockEngineSettings:
    return load_settings(
        MockEngineSettings, service="mock-engine", argv=flags, environ={}, description=""
    )


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ("--blocks 4 --max-model-len 65", "4 blocks of 16 hold 64 tokens"),
        ("--events udp://127.0.0.1:1", "events"),
        ("--replay tcp://127.0.0.1:1", "replay needs events"),
        ("--model m --lora m", "must differ"),
        ("--tokenizer /nowhere/tokenizer.json", "there is no /nowhere/tokenizer.json"),
        ("--speedup 0", "speedup"),
    ],
)
def test_impossible_settings_are_refused(flags: str, says: str) -> None:
    with pytest.raises(SettingsError, match=says):
        load(*flags.split())


def test_the_context_is_the_cache_unless_it_is_set_lower() -> None:
    assert load("--blocks", "4", "--block-size", "32").context_tokens == 128
    assert load("--blocks", "4", "--max-model-len", "50").context_tokens == 50


def test_no_time_at_all_is_a_speedup() -> None:
    assert load("--speedup", "inf").speedup == float("inf")


def test_adapters_may_be_given_one_by_one_or_together() -> None:
    assert load("--lora", "a", "--lora", "b", "c").lora == ("a", "b", "c")
