"""Reading traces: what is played, and what is refused with the line that is wrong."""

import json
from pathlib import Path

import pytest

from kvatlas_loadtest.trace import TraceError, TraceRow, read_trace


def write(path: Path, *lines: object) -> Path:
    path.write_text("".join(f"{x if isinstance(x, str) else json.dumps(x)}\n" for x in lines))
    return path


def row(**changes: object) -> dict[str, object]:
    good = {"timestamp": 0, "input_length": 700, "output_length": 5, "hash_ids": [0, 1]}
    return good | changes


def test_a_request_is_read_as_it_is_written(tmp_path: Path) -> None:
    file = write(tmp_path / "t.jsonl", row(timestamp=3000), row(hash_ids=[7, 9], extra="ignored"))
    trace = read_trace(file, requests_max=10)
    assert trace.name == "t.jsonl"
    assert trace.rows == (TraceRow(0.0, 700, 5, (7, 9)), TraceRow(3000.0, 700, 5, (0, 1)))


def test_only_the_first_requests_are_read_even_if_later_ones_are_broken(tmp_path: Path) -> None:
    file = write(tmp_path / "t.jsonl", row(), "", row(), "broken")
    assert len(read_trace(file, requests_max=2).rows) == 2


def test_the_shipped_trace_has_two_thousand_requests() -> None:
    trace = read_trace(None, requests_max=5_000)
    assert len(trace.rows) == 2_000
    assert trace.rows[0] == TraceRow(0.0, 6758, 500, tuple(range(14)))


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("{", "Invalid JSON"),
        ("[1]", "should be an object"),
        ({"timestamp": 0}, "input_length: Field required"),
        (row(timestamp="0"), "timestamp: Input should be a valid number"),
        (row(timestamp=-1), "timestamp: Input should be greater than or equal to 0, not -1"),
        (
            '{"timestamp": NaN, "input_length": 1, "output_length": 1, "hash_ids": [0]}',
            "timestamp: Input should be a finite number",
        ),
        (
            row(input_length=0, hash_ids=[]),
            "input_length: Input should be greater than or equal to 1, not 0",
        ),
        (row(input_length=True), "input_length: Input should be a valid integer"),
        (
            row(output_length=-2),
            "output_length: Input should be greater than or equal to 0, not -2",
        ),
        (row(hash_ids="0"), "hash_ids: Input should be a valid"),
        (row(hash_ids=[0, "1"]), "hash_ids: 1: Input should be a valid integer, not '1'"),
        (row(hash_ids=[0, -1]), "hash_ids: 1: Input should be greater than or equal to 0, not -1"),
        (row(input_length=1025), "input_length 1025 takes 3 hash_ids of 512 tokens, there are 2"),
        (row(input_length=512), "input_length 512 takes 1 hash_ids of 512 tokens, there are 2"),
    ],
)
def test_a_malformed_line_is_named_by_its_number(
    tmp_path: Path, line: object, complaint: str
) -> None:
    file = write(tmp_path / "t.jsonl", row(), line)
    with pytest.raises(TraceError, match=r"t\.jsonl, line 2: ") as error:
        read_trace(file, requests_max=10)
    assert complaint in str(error.value)
    assert "\n" not in str(error.value)


def test_a_file_without_requests_or_without_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="holds no request"):
        read_trace(write(tmp_path / "empty.jsonl"), requests_max=1)
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(TraceError, match="no text"):
        read_trace(tmp_path / "binary", requests_max=1)
    with pytest.raises(TraceError, match="No such file"):
        read_trace(tmp_path / "missing", requests_max=1)
    with pytest.raises(TraceError, match="directory"):
        read_trace(tmp_path, requests_max=1)
