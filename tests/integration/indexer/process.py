"""A real `kvatlas indexer` process, and the ways to talk to it."""

import asyncio
import json
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp

KVATLAS = Path(sys.executable).with_name("kvatlas")
TERMS = ("--cell", "blue", "--model", "model", "--block-size", "16")
_START_S = 30.0
_STOP_S = 15.0


class IndexerProcess:
    """A running indexer; its addresses are known once it has said that it is ready."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.listen = ""
        self.admin = ""

    async def ready(self) -> dict[str, object]:
        assert self.process.stdout is not None
        line = await asyncio.wait_for(self.process.stdout.readline(), _START_S)
        facts: dict[str, object] = json.loads(line)
        self.listen, self.admin = str(facts["listen"]), str(facts["admin"])
        return facts

    async def stop(self) -> tuple[int, str]:
        """SIGTERM; the exit status and what else was printed on stdout."""
        self.process.terminate()
        rest, _ = await asyncio.wait_for(self.process.communicate(), _STOP_S)
        assert self.process.returncode is not None
        return self.process.returncode, rest.decode()


async def spawn(*words: str) -> IndexerProcess:
    process = await asyncio.create_subprocess_exec(
        KVATLAS,
        "indexer",
        *words,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    return IndexerProcess(process)


@asynccontextmanager
async def indexer(*words: str, admin: str = "127.0.0.1:0") -> AsyncGenerator[IndexerProcess]:
    """An indexer with these words besides its cell's terms, gone at the end in any case."""
    started = await spawn("--listen", "127.0.0.1:0", "--admin", admin, *TERMS, *words)
    try:
        yield started
    finally:
        if started.process.returncode is None:
            started.process.kill()
            await started.process.wait()


async def refusal(*words: str) -> tuple[int, list[str]]:
    """Start an indexer that must not start: its exit status and its lines on stderr."""
    process = await asyncio.create_subprocess_exec(
        KVATLAS,
        "indexer",
        *words,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await asyncio.wait_for(process.communicate(), _START_S)
    assert out == b""
    assert process.returncode is not None
    return process.returncode, err.decode().splitlines()


async def fetch(address: str, path: str) -> tuple[int, str]:
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://{address}{path}") as response,
    ):
        return response.status, await response.text()
