"""A mock engine as a child process: `async with running_engine(…) as engine:`."""

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any

_FREE_PORTS = (
    *("--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"),
    *("--events", "tcp://127.0.0.1:*", "--replay", "tcp://127.0.0.1:*"),
)
_PROGRAM = "import sys; from kvatlas_mocker.main import command; sys.exit(command(sys.argv[1:]))"


@dataclass(frozen=True, slots=True)
class EngineProcess:
    """A running mock engine."""

    url: str
    admin_url: str
    events: str
    replay: str
    ready: dict[str, Any]
    handle: asyncio.subprocess.Process


@contextlib.asynccontextmanager
async def running_engine(*flags: str) -> AsyncGenerator[EngineProcess, None]:
    """Start a mock engine on free loopback ports; stop it when the block ends.

    Raises:
        RuntimeError: it ended before it was ready; the reason is on this process's stderr.
    """
    handle = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", _PROGRAM, *_FREE_PORTS, *flags),
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        line = await handle.stdout.readline() if handle.stdout is not None else b""
        if not line:
            raise RuntimeError(f"the mock engine ended with status {await handle.wait()}")
        ready: dict[str, Any] = json.loads(line)
        yield EngineProcess(
            url=f"http://{ready['listen']}",
            admin_url=f"http://{ready['admin']}",
            events=ready["events"],
            replay=ready["replay"],
            ready=ready,
            handle=handle,
        )
    finally:
        if handle.returncode is None:
            handle.terminate()
        await handle.wait()
