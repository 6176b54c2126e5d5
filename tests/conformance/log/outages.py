"""Calls and reads that go on until the log answers."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from kvatlas_events import LogReader, LogUnavailable

Answer = TypeVar("Answer")


async def outlast(call: Callable[[], Awaitable[Answer]], patience_s: float = 40) -> Answer:
    """Call until the log is available."""
    async with asyncio.timeout(patience_s):
        while True:
            try:
                return await call()
            except LogUnavailable:
                await asyncio.sleep(0.01)


async def read_records(reader: LogReader, count: int, patience_s: float = 20) -> list[bytes]:
    """Read that many records, also over outages."""
    got: list[bytes] = []
    async with asyncio.timeout(patience_s):
        while len(got) < count:
            got += (await outlast(lambda: reader.read(0.5))).records
    return got
