"""A cell with the most workers, each with large heartbeats."""

import asyncio
import re

import grpc.aio

from kvatlas_verify.main import command as verify
from kvatlas_wire.v1 import events_pb2 as pb
from kvatlas_wire.v1 import indexer_pb2 as rpc
from kvatlas_wire.v1 import indexer_pb2_grpc as stubs
from tests.integration.indexer.process import fetch, indexer
from tests.unit.cell.record_source import RecordSource, store

WORKERS = 8_000
LABELS = {f"label-{number}": "x" * 100 for number in range(10)}


async def fill(address: str) -> None:
    facts = pb.Heartbeat(engine_url="http://engine:8000", labels=LABELS)
    records: list[bytes] = []
    for number in range(WORKERS):
        source = RecordSource(number)
        records += [source.events(store(number + 1)), source.heartbeat(facts=facts)]
    requests = [records[first : first + 1_000] for first in range(0, len(records), 1_000)]
    async with grpc.aio.insecure_channel(address) as channel:
        stub: stubs.IndexerAsyncStub = stubs.IndexerStub(channel)
        calls = stub.Ingest(iter([rpc.IngestRequest(records=each) for each in requests]))
        assert sum([answer.accepted async for answer in calls]) == len(records)


async def test_a_replica_of_a_large_cell_starts_from_a_peer_and_is_verified() -> None:
    lease = ("--lease-ms", "600000")
    async with indexer("--log", "grpc:", *lease) as peer:
        await peer.ready()
        await fill(peer.listen)
        async with indexer("--log", "grpc:", *lease, "--peer", peer.listen) as process:
            await process.ready()
            _, page = await fetch(process.admin, "/metrics")
            assert re.search(r'^kvatlas_indexer_start{source="peer"} 1.0$', page, re.MULTILINE)
            sides = ["--indexer", peer.listen, "--indexer", process.listen]
            assert await asyncio.to_thread(verify, sides) == 0
