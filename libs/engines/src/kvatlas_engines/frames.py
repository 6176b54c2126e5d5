"""The frames of an engine's ZMQ messages, live and replayed.

    live     [topic, seq, payload]
    replay   ["", topic, seq, payload]   (vLLM from 0.26, SGLang from 0.5.22)
             ["", seq, payload]          (older)
    end      [..., ff x 8, empty]

The frames are read from the right. seq is 8 bytes, big-endian. The payload is not looked at.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

_SEQ_BYTES = 8
_END_SEQ = b"\xff" * _SEQ_BYTES


class MalformedMessage(ValueError):  # noqa: N818 - named for what it is
    """The frames are not an engine's message; the text says why."""


class Message(NamedTuple):
    """One numbered message. A tuple, since many are made a second."""

    seq: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class ReplayEnd:
    """The marker behind the last message of a replay."""


def parse_frames(frames: Sequence[bytes]) -> Message | ReplayEnd:
    """Read the frames of one message.

    Raises:
        MalformedMessage: fewer than two frames, or no sequence number where one belongs.
    """
    if len(frames) < 2:  # noqa: PLR2004 - seq and payload
        raise MalformedMessage(
            f"{len(frames)} frames; a sequence number and a payload are expected"
        )
    seq, payload = frames[-2], frames[-1]
    if len(seq) != _SEQ_BYTES:
        raise MalformedMessage(f"a sequence number of {len(seq)} bytes; 8 are expected")
    if seq == _END_SEQ:
        if payload:
            raise MalformedMessage("the end marker with a payload")
        return ReplayEnd()
    return Message(int.from_bytes(seq, "big"), payload)
