"""Workers that exist only as records: heartbeats, and stores of blocks.

The engines of the frontend's benchmark answer at once and cache nothing. So their events are pushed
to the indexer here, in the form in which a publisher would push them.
"""

import asyncio
import random
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

import numpy as np
from numpy.typing import NDArray

from kvatlas_events import Batch, Header, Heartbeat, Load, Store, Tier, TierDigest
from kvatlas_events.codec import encode_batch
from kvatlas_loadtest.bench.cell import record_header
from kvatlas_loadtest.indexer_rpc import ingest

HEARTBEAT_S = 1.0


@asynccontextmanager
async def announced_workers(
    indexer: str,
    *,
    engine_urls: Sequence[str],
    prompts: Sequence[NDArray[np.uint64]],
) -> AsyncGenerator[None]:
    """One worker per engine URL, live for as long as the context lasts.

    Worker i modulo their number holds prompt i, which is given as its sequence hashes.
    """
    workers = [
        _FakeWorker(
            record_header(
                number, epoch=time.time_ns() // 1_000, instance_id=random.getrandbits(64)
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
        """A heartbeat's record with the current time."""
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
