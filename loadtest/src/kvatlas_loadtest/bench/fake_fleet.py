"""Workers that exist for an indexer alone: their heartbeats, and the blocks they are said to hold.

The frontend's benchmark has engines that answer at once and cache nothing. What an indexer believes
of them is pushed to it as a publisher would push it.
"""

import asyncio
import random
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

import numpy as np
from numpy.typing import NDArray

from kvatlas_events.codec import encode_batch
from kvatlas_events.model import Batch, Header, Heartbeat, Load, Store, Tier, TierDigest, Worker
from kvatlas_hashing import CONTRACT
from kvatlas_loadtest.codec import ingest

HEARTBEAT_S = 1.0


@asynccontextmanager
async def announced_workers(
    indexer: str,
    *,
    cell: str,
    model: str,
    block_size: int,
    engine_urls: Sequence[str],
    prompts: Sequence[NDArray[np.uint64]],
) -> AsyncGenerator[None]:
    """One worker per engine URL, live for as long as the context lasts.

    Prompt i, given as its sequence hashes, is held by worker i modulo their number.
    """
    workers = [
        _FakeWorker(
            Header(
                worker=Worker(number),
                epoch=time.time_ns() // 1_000,
                instance_id=random.getrandbits(64),
                cell=cell,
                model=model,
                block_size=block_size,
                hash_contract=CONTRACT,
                publisher="bench",
            ),
            url,
            prompts[number :: len(engine_urls)],
        )
        for number, url in enumerate(engine_urls)
    ]
    async with ingest(indexer) as push:
        await push([record for worker in workers for record in worker.stores()])

        async def beat() -> None:
            while True:
                await push([worker.heartbeat() for worker in workers])
                await asyncio.sleep(HEARTBEAT_S)

        beating = asyncio.create_task(beat())
        try:
            yield
        finally:
            beating.cancel()
            await asyncio.gather(beating, return_exceptions=True)


class _FakeWorker:
    def __init__(self, header: Header, url: str, prompts: Sequence[NDArray[np.uint64]]) -> None:
        self._header = header
        self._url = url
        self._prompts = prompts

    def stores(self) -> list[bytes]:
        """One record per prompt, numbered from 1."""
        return [
            encode_batch(
                Batch(
                    header=self._header,
                    first_event_id=event_id,
                    events=(Store(None, hashes, Tier.DEVICE),),
                )
            )
            for event_id, hashes in enumerate(self._prompts, start=1)
        ]

    def heartbeat(self) -> bytes:
        """The record of now."""
        held = np.unique(np.concatenate([np.empty(0, np.uint64), *self._prompts]))
        digest = TierDigest(Tier.DEVICE, len(held), int(np.bitwise_xor.reduce(held)))
        beat = Heartbeat(
            last_event_id=len(self._prompts),
            digests=(digest,),
            load=Load(requests_running=0, requests_waiting=0, kv_usage=0.0),
            capacity_blocks=1 << 20,
            engine_url=self._url,
            publisher_rpc="",
            role="",
            sent_unix_us=time.time_ns() // 1_000,
        )
        return encode_batch(Batch(header=self._header, heartbeat=beat))
