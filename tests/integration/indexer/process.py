"""Runs a real `kvatlas indexer` process."""

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
    """A running indexer; its addresses are known from its ready line on."""

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
        """Send SIGTERM; return the exit status and the rest of stdout."""
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
    """Run an indexer with these flags and a cell's terms; it always ends with the block."""
    started = await spawn("--listen", "127.0.0.1:0", "--admin", admin, *TERMS, *words)
    try:
        yield started
    finally:
        if started.process.returncode is None:
            started.process.kill()
            await started.process.wait()


async def refusal(*words: str) -> tuple[int, list[str]]:
    """Run an indexer that must fail to start; return its exit status and lines on stderr."""
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
