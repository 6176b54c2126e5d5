"""How a life of an engine's stream is taken up again by another process: by its last message."""

import hashlib
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Anchor:
    """The last message that was delivered before we began; all that is left of it is its digest."""

    seq: int
    digest: bytes


@dataclass(frozen=True, slots=True)
class Resumed:
    """The engine is still in the life of the anchor; what comes next continues it."""


def digest_of(payload: bytes) -> bytes:
    """Return what an `Anchor` remembers of a payload."""
    return hashlib.blake2b(payload, digest_size=16).digest()
