"""ZMQ endpoints as users write them, and which side of them binds.

Engines bind where their endpoint is a wildcard and connect otherwise, and so do we: an engine that
connects to us needs us to listen.
"""

import re
from dataclasses import dataclass
from typing import Self

_TCP = re.compile(r"tcp://(?P<host>\[[0-9a-fA-F:.%]+\]|[^:/\[\]\s]+):(?P<port>\d{1,5})")
_WILDCARDS = frozenset({"*", "0.0.0.0", "[::]"})  # noqa: S104 - recognised, not bound here
_PORT_MAX = 65_535


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An address that ZMQ understands."""

    address: str
    binds: bool
    """We listen there; the engine connects."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `tcp://HOST:PORT`, `tcp://*:PORT`, `ipc://PATH`.

        Raises:
            ValueError: the text is none of them; the message names it.
        """
        if text.startswith("ipc://") and len(text) > len("ipc://"):
            return cls(text, binds=False)
        match = _TCP.fullmatch(text)
        if match is None or not 0 < int(match["port"]) <= _PORT_MAX:
            raise ValueError(f"{text!r} is neither tcp://HOST:PORT nor ipc://PATH")
        return cls(text, binds=match["host"] in _WILDCARDS)

    def __str__(self) -> str:
        return self.address
