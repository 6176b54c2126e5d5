"""The effects that following an engine's messages has, and the point from which another process resumes."""

import enum
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True, slots=True)
class Deliver:
    """The next message."""

    seq: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class DeliverMany:
    """The next messages, numbered from `seq` on; the same as several `Deliver`s."""

    seq: int
    payloads: Sequence[bytes]


@dataclass(frozen=True, slots=True)
class RequestReplay:
    """Request a replay from `start` on a fresh socket, and abandon the request before."""

    start: int
    generation: int


@dataclass(frozen=True, slots=True)
class Hole:
    """The engine never sent these numbers, and never will."""

    first: int
    last: int


class ResetReason(enum.StrEnum):
    """The reason why a stream cannot be continued; closed, since it labels a counter."""

    RESTARTED = "engine_restarted"
    HISTORY_GONE = "history_gone"
    GAP_NOT_RECOVERED = "gap_not_recovered"
    """Messages are missing, and there is no replay endpoint or it does not answer."""


@dataclass(frozen=True, slots=True)
class StreamReset:
    """Forget what was delivered: the next messages do not continue it."""

    reason: ResetReason


@dataclass(frozen=True, slots=True)
class Resumed:
    """The engine has shown the message of the resume point: the next messages continue it."""


Effect = Deliver | DeliverMany | RequestReplay | Hole | StreamReset | Resumed


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """The last message that another process delivered: its number, and the digest of its payload."""

    seq: int
    digest: bytes

    @classmethod
    def of(cls, message: Deliver) -> Self:
        """Return the resume point behind a message."""
        return cls(message.seq, payload_digest(message.payload))


def payload_digest(payload: bytes) -> bytes:
    """Return the digest that a `ResumePoint` holds of a payload."""
    return hashlib.blake2b(payload, digest_size=16).digest()
