"""A replica's life on real processes: killed, started again, started from a peer, its disk full."""

import asyncio
import re
from pathlib import Path

import grpc.aio
import redis.asyncio as redis

from kvatlas_events import LogWriter, open_writers
from kvatlas_testing.valkey import EmbeddedValkey
from kvatlas_verify.main import command as verify
from kvatlas_wire.v1 import events_pb2 as pb
from kvatlas_wire.v1 import indexer_pb2 as rpc
from kvatlas_wire.v1 import indexer_pb2_grpc as stubs
from tests.integration.indexer.process import KVATLAS, TERMS, IndexerProcess, fetch, indexer
from tests.unit.cell.record_source import RecordSource, clear, remove, store

STREAM = "kvatlas:{blue}:log:0"
DEPTH = 500
_POLLS = 1_200


def chain(source: RecordSource, depth: int = DEPTH) -> list[bytes]:
    """One block a record, and a heartbeat."""
    events = [source.events(store(number)) for number in range(1, depth + 1)]
    return [*events, source.heartbeat()]


async def metric(process: IndexerProcess, name: str) -> float:
    _, page = await fetch(process.admin, "/metrics")
    found = re.search(rf"^kvatlas_indexer_{re.escape(name)} (\S+)$", page, re.MULTILINE)
    return float(found[1]) if found else 0.0


async def reaches(process: IndexerProcess, name: str, least: float) -> None:
    for _ in range(_POLLS):
        if await metric(process, name) >= least:
            return
        await asyncio.sleep(0.05)
    raise AssertionError(name)


async def depths(process: IndexerProcess, depth: int = DEPTH) -> dict[int, int]:
    async with grpc.aio.insecure_channel(process.listen) as channel:
        stub: stubs.IndexerAsyncStub = stubs.IndexerStub(channel)
        query = rpc.FindMatchesRequest(sequence_hashes=range(1, depth + 1))
        answer = await stub.FindMatches(query)
        return dict(zip(answer.worker_ids, answer.depths, strict=True))


async def dump(process: IndexerProcess) -> bytes:
    async with grpc.aio.insecure_channel(process.listen) as channel:
        stub: stubs.IndexerAsyncStub = stubs.IndexerStub(channel)
        slices = [message.arrow_ipc async for message in stub.Dump(rpc.DumpRequest())]
        return b"".join(slices)


def names(directory: Path) -> list[str]:
    return [path.name for path in directory.iterdir()]


async def trim_all(url: str) -> None:
    async with redis.from_url(url) as client:
        assert await client.xtrim(STREAM, maxlen=0, approximate=False)


def writer_of(valkey: EmbeddedValkey) -> LogWriter:
    (writer,) = open_writers(valkey.url, cell="blue")
    return writer


async def test_a_killed_replica_starts_from_its_file_when_the_log_has_nothing_left(
    tmp_path: Path,
) -> None:
    words = ("--snapshot-dir", str(tmp_path), "--snapshot-interval-s", "0.2")
    source = RecordSource()
    async with EmbeddedValkey() as valkey:
        writer = writer_of(valkey)
        await writer.append(chain(source))
        async with indexer("--log", valkey.url, *words) as process:
            await process.ready()
            # The first file after being ready may have been begun before; the one after it was not.
            written = await metric(process, "state_files_written_total")
            await reaches(process, "state_files_written_total", written + 2)
            process.process.kill()
            await process.process.wait()
        await trim_all(valkey.url)
        await writer.append([source.events(store(DEPTH + 1)), source.heartbeat()])
        async with indexer("--log", valkey.url, *words) as process:
            await process.ready()
            assert await depths(process, DEPTH + 1) == {1: DEPTH + 1}
            assert await metric(process, 'start{source="file"}') == 1
            assert (await process.stop())[0] == 0
        await writer.close()


async def test_a_replica_starts_from_a_peer_and_both_are_whole() -> None:
    source = RecordSource()
    async with EmbeddedValkey() as valkey:
        writer = writer_of(valkey)
        await writer.append(chain(source))
        async with indexer("--log", valkey.url) as peer:
            await peer.ready()
            await trim_all(valkey.url)
            dead = "127.0.0.1:1"
            async with indexer(
                "--log", valkey.url, "--peer", dead, "--peer", peer.listen
            ) as process:
                await process.ready()
                assert await metric(process, 'start{source="peer"}') == 1
                passed_over = 'start_peers_passed_over_total{reason="unreachable"}'
                assert await metric(process, passed_over) == 1
                await writer.append([source.events(store(DEPTH + 1)), source.heartbeat()])
                sides = ["--indexer", peer.listen, "--indexer", process.listen]
                assert await asyncio.to_thread(verify, sides) == 0
                for each in (peer, process):
                    await reaches(each, "memberships", DEPTH + 1)
                assert await dump(peer) == await dump(process)
        await writer.close()


async def test_replicas_dump_the_same_bytes_after_a_mixed_load() -> None:
    async with EmbeddedValkey() as valkey:
        writer = writer_of(valkey)
        async with indexer("--log", valkey.url) as early:
            await early.ready()
            last = 0
            for epoch in (1_000, 2_000):
                for worker_id in (9, 3, 7):
                    source = RecordSource(worker_id=worker_id, epoch=epoch)
                    await writer.append(chain(source, 40))
                    on_host = store(*range(10, 30), tier=pb.TIER_HOST)
                    more = [source.events(on_host, remove(*range(20, 41)))]
                    if worker_id == 7:
                        more.append(source.events(clear(pb.TIER_DEVICE), store(epoch)))
                    await writer.append([*more, source.heartbeat()])
                    last += 1
            async with indexer("--log", valkey.url) as late:
                await late.ready()
                sides = ["--indexer", early.listen, "--indexer", late.listen]
                assert await asyncio.to_thread(verify, sides) == 0
                assert await dump(early) == await dump(late)
        await writer.close()


async def test_a_full_disk_costs_the_file_and_nothing_else(tmp_path: Path) -> None:
    source = RecordSource()
    # No file of this process can be larger than half a kilobyte: writes fail as on a full disk.
    limited = 'ulimit -f 1; exec "$0" indexer "$@"'
    words = ("--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", *TERMS)
    async with EmbeddedValkey() as valkey:
        writer = writer_of(valkey)
        await writer.append(chain(source))
        process = IndexerProcess(
            await asyncio.create_subprocess_exec(
                *("sh", "-c", limited, KVATLAS, *words, "--log", valkey.url),
                *("--snapshot-dir", str(tmp_path), "--snapshot-interval-s", "0.1"),
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
            )
        )
        try:
            await process.ready()
            await reaches(process, "state_files_failed_total", 2)
            assert await depths(process) == {1: DEPTH}
            assert await process.stop() == (0, "")
        finally:
            if process.process.returncode is None:
                process.process.kill()
                await process.process.wait()
        assert names(tmp_path) == []
        await writer.close()


async def test_a_stopped_replica_goes_on_from_its_file_and_passes_over_a_broken_one(
    tmp_path: Path,
) -> None:
    words = ("--snapshot-dir", str(tmp_path))
    async with EmbeddedValkey() as valkey:
        writer = writer_of(valkey)
        await writer.append(chain(RecordSource()))
        async with indexer("--log", valkey.url, *words) as process:
            await process.ready()
            assert (await process.stop())[0] == 0
        (name,) = names(tmp_path)
        (tmp_path / name).rename(tmp_path / f"state-9999999999999-{'0' * 16}.arrow")
        async with indexer("--log", valkey.url, *words) as process:
            await process.ready()
            assert await depths(process) == {1: DEPTH}
            assert await metric(process, 'start{source="log"}') == 1
            passed_over = 'state_files_passed_over_total{reason="corrupt"}'
            assert await metric(process, passed_over) == 1
            assert (await process.stop())[0] == 0
        await writer.close()
