"""ZMQ endpoints as users write them, and the side of them that binds.

An engine binds its endpoint or connects to it. We listen where the endpoint is a wildcard, for an
engine that connects, and connect otherwise.
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
    """We listen at the address, and the engine connects."""

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
        """The path of a Unix socket, in the file system or the abstract namespace; None: it is TCP."""
        if not self.address.startswith("ipc://"):
            return None
        path = self.address.removeprefix("ipc://")
        return f"\0{path[1:]}" if path.startswith("@") else path

    @property
    def host_port(self) -> tuple[str, int]:
        """Host and port of a TCP address; a wildcard becomes the address of any interface."""
        host, _, port = self.address.removeprefix("tcp://").rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        return "0.0.0.0" if host == "*" else host, int(port)  # noqa: S104 - as the user asked

    def __str__(self) -> str:
        return self.address
