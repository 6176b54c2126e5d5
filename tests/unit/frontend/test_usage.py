"""The usage that an engine reports at the end of an answer."""

import logging

import pytest
from prometheus_client import CollectorRegistry

from kvatlas_frontend.metrics import FrontendMetrics
from kvatlas_frontend.proxy.usage import Expected, UsageCheck

ANSWER = b'..."usage": {"prompt_tokens": %d, "prompt_tokens_details": {"cached_tokens": %d}}}'


def check(tail: bytes, expected: Expected) -> dict[str, float]:
    registry = CollectorRegistry()
    UsageCheck(FrontendMetrics(registry), block_size=16).compare(tail, expected, 0.0)
    return {
        f"{name}{''.join(labels.values())}": value
        for name, labels in [
            ("prompts_compared", {"result": "equal"}),
            ("prompts_compared", {"result": "drift"}),
            ("promises", {"result": "kept"}),
            ("promises", {"result": "short"}),
            ("promised_blocks", {}),
            ("cached_blocks", {}),
        ]
        if (value := registry.get_sample_value(f"kvatlas_frontend_{name}_total", labels))
    }


def test_a_kept_promise() -> None:
    assert check(ANSWER % (100, 64), Expected(100, 4)) == {
        "prompts_comparedequal": 1,
        "promiseskept": 1,
        "promised_blocks": 4,
        "cached_blocks": 4,
    }


def test_a_short_promise_and_drift() -> None:
    assert check(ANSWER % (101, 63), Expected(100, 4)) == {
        "prompts_compareddrift": 1,
        "promisesshort": 1,
        "promised_blocks": 4,
        "cached_blocks": 3,
    }


def test_an_answer_without_usage_says_nothing() -> None:
    assert check(b"data: [DONE]\n\n", Expected(100, 4)) == {}
    assert check(b'"usage": null', Expected(100, 4)) == {}


def test_the_last_numbers_count() -> None:
    text = b'{"text": "\\"prompt_tokens\\": 5"}' + ANSWER % (100, 0)
    assert check(text, Expected(100, 0)) == {"prompts_comparedequal": 1}


def test_drift_is_told_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    usage = UsageCheck(FrontendMetrics(CollectorRegistry()), block_size=16)
    with caplog.at_level(logging.WARNING):
        for now_s in (1.0, 2.0, 60.0, 61.5):
            usage.compare(ANSWER % (101, 0), Expected(100, 0), now_s)
    assert len(caplog.records) == 2
    assert "100 tokens here and 101 in the engine" in caplog.text
