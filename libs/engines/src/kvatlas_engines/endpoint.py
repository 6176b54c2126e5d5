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

    @property
    def path(self) -> str | None:
        """Of a socket in the file system, or in the abstract space; None: it is of TCP."""
        if not self.address.startswith("ipc://"):
            return None
        path = self.address.removeprefix("ipc://")
        return f"\0{path[1:]}" if path.startswith("@") else path

    @property
    def host_port(self) -> tuple[str, int]:
        """Of TCP, as a socket takes them; a wildcard is the address of any interface."""
        host, _, port = self.address.removeprefix("tcp://").rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        return "0.0.0.0" if host == "*" else host, int(port)  # noqa: S104 - as the user asked

    def __str__(self) -> str:
        return self.address
