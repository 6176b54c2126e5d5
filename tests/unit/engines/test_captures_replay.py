"""Replies of the replay socket, in both shapes, against literals."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvatlas_engines.frames import Message, ReplayEnd, parse_frames

EVERY = Path(__file__).parents[2] / "fixtures" / "engines"
SEQS = {
    ("sglang-0.5.17", 2): [2, 3],
    ("sglang-0.5.23", 0): [*range(18)],
    ("sglang-0.5.23", 15): [15, 16, 17],
    ("vllm-0.10.2", 0): [*range(8)],
    ("vllm-0.10.2", 99): [],
    ("vllm-0.23.0", 0): [*range(8)],
    ("vllm-0.23.0", 99): [],
    ("vllm-0.24.0", 0): [*range(8)],
    ("vllm-0.24.0", 99): [],
    ("vllm-0.33.0-sha256_cbor-int", 0): [*range(17), 18],
    ("vllm-0.33.0-sha256_cbor-int", 17): [18],
    ("vllm-0.33.0-sha256_cbor-int", 10000): [],
    ("vllm-0.33.0-sha256-bytes", 0): [*range(17), 18],
    ("vllm-0.33.0-sha256-bytes", 17): [18],
    ("vllm-0.33.0-sha256-bytes", 10000): [],
}


@pytest.mark.parametrize(("name", "start"), SEQS)
def test_a_replay_is_the_messages_from_there_and_the_end(
    capture: Callable[[str], dict[str, Any]], name: str, start: int
) -> None:
    document = capture(name)
    replay = next(each for each in document["replay"] if each["start_seq"] == start)
    replies = [
        parse_frames([bytes.fromhex(frame) for frame in frames])
        for frames in replay["response_frames_hex"]
    ]
    live = {each["seq"]: bytes.fromhex(each["frames_hex"][-1]) for each in document["messages"]}
    assert replies == [*(Message(seq, live[seq]) for seq in SEQS[name, start]), ReplayEnd()]


def test_no_capture_is_left_out(capture: Callable[[str], dict[str, Any]]) -> None:
    names = [path.stem for path in EVERY.glob("*.json")]
    listed = {
        (name, replay["start_seq"]) for name in names for replay in capture(name).get("replay", [])
    }
    assert listed == set(SEQS)
    assert set(names) == {name for name, _ in SEQS} | {"vllm-0.33.0-dp-ranks"}
