"""Small readers: metrics pages and streamed answers."""

import pytest

from kvatlas_loadtest.prometheus import Histogram, parse, total
from kvatlas_loadtest.sse import SseError, SseReader, cached_tokens

PAGE = """\
# HELP x_seconds Time.
# TYPE x_seconds histogram
x_seconds_bucket{le="0.1",stage="find"} 10
x_seconds_bucket{le="0.2",stage="find"} 20
x_seconds_bucket{le="+Inf",stage="find"} 20
x_seconds_bucket{le="0.1",stage="total"} 5
x_seconds_bucket{le="0.2",stage="total"} 15
x_seconds_bucket{le="+Inf",stage="total"} 20
y_total{a="1",b="x \\"y\\""} 3
y_total{a="2",b=""} 4.5
z 1e3
"""


def test_counters_are_added_up_by_name_and_label() -> None:
    samples = parse(PAGE)
    assert total(samples, "y_total") == 7.5
    assert total(samples, "y_total", a="2") == 4.5
    assert total(samples, "z") == 1_000
    assert total(samples, "none") == 0


def test_quantiles_are_interpolated_within_their_bucket() -> None:
    samples = parse(PAGE)
    find = Histogram.read(samples, "x_seconds", stage="find")
    assert find.quantile(0.5) == pytest.approx(0.1)
    assert find.quantile(0.75) == pytest.approx(0.15)
    whole = Histogram.read(samples, "x_seconds", stage="total")
    assert whole.quantile(0.1) == pytest.approx(0.04)
    assert whole.quantile(0.99) == pytest.approx(0.2)  # beyond the last bound
    both = Histogram.read(samples + samples, "x_seconds", stage="find")
    assert both.counts == (20.0, 40.0, 40.0)
    assert Histogram.read(samples, "none").quantile(0.5) is None


def test_events_are_read_however_they_are_cut() -> None:
    stream = b'data: {"n": 1}\n\n: comment\n\ndata: {"n": 2}\r\n\r\ndata: [DONE]\n\n'
    for size in (1, 3, 7, len(stream)):
        reader = SseReader()
        pieces = [stream[i : i + size] for i in range(0, len(stream), size)]
        assert [event for piece in pieces for event in reader.feed(piece)] == [{"n": 1}, {"n": 2}]
        assert reader.done


def test_an_event_that_is_no_object_is_an_error() -> None:
    for payload in (b"data: nothing\n\n", b"data: [1]\n\n"):
        with pytest.raises(SseError):
            list(SseReader().feed(payload))


def test_cached_tokens_are_those_the_engine_reports() -> None:
    assert cached_tokens({"usage": {"prompt_tokens_details": {"cached_tokens": 32}}}) == 32
    assert cached_tokens({"usage": {"prompt_tokens_details": None}}) == 0
    assert cached_tokens({"usage": None}) is None
    assert cached_tokens({}) is None
