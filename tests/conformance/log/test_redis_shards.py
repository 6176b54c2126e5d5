"""A Redis log of several shards on real servers, on one and on a cluster's nodes."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest
import redis.asyncio as redis

from kvatlas_events import LogReader, LogSlice, LogUnavailable
from kvatlas_events.redis.keys import shard_of, stream_key
from kvatlas_events.redis.open import open_redis
from kvatlas_events.redis.reader import RedisReader
from kvatlas_events.redis.writer import RedisWriter
from kvatlas_testing.child_process import paused
from kvatlas_testing.valkey import EmbeddedValkey
from kvatlas_testing.valkey_cluster import EmbeddedValkeyCluster
from tests.conformance.log.outages import outlast, read_records
from tests.conformance.log.redis_transports import RedisTransport, alone, in_cluster
from tests.unit.cell.record_source import RecordSource, store

SHARDS = {"one server": 4, "cluster": 8}


@pytest.fixture(params=list(SHARDS))
async def log(
    request: pytest.FixtureRequest, redis_cluster: EmbeddedValkeyCluster
) -> AsyncGenerator[RedisTransport, None]:
    opened = alone(shards=4) if request.param == "one server" else in_cluster(redis_cluster)
    async with opened as transport:
        await transport.start()
        yield transport


@pytest.fixture
async def on_cluster(redis_cluster: EmbeddedValkeyCluster) -> AsyncGenerator[RedisTransport, None]:
    async with in_cluster(redis_cluster) as transport:
        yield transport


def streams(log: RedisTransport) -> dict[int, str]:
    """Return the streams' keys by shard."""
    return {shard: stream_key(log.cell, shard) for shard in range(log.shards)}


def source_of(shard: int, shards: int) -> RecordSource:
    """Return the first worker whose records go to that shard."""
    worker_ids = range(1, 1_000)
    return next(
        source
        for source in map(RecordSource, worker_ids)
        if shard_of(source.heartbeat(), shards) == shard
    )


async def test_each_workers_records_keep_their_order_over_all_shards(log: RedisTransport) -> None:
    sources = [source_of(shard, log.shards) for shard in range(log.shards)]
    said = {each.worker_id: [each.events(store(n)) for n in range(1, 31)] for each in sources}
    writer, reader = log.writer(), log.reader()
    for number in range(0, 30, 5):
        batch = [record for records in said.values() for record in records[number : number + 5]]
        await writer.append(batch)
    got = await read_records(reader, 30 * len(sources))
    for records in said.values():
        assert [record for record in got if record in records] == records
    async with log.client() as client:
        lengths = {shard: await client.xlen(key) for shard, key in streams(log).items()}
    assert lengths == dict.fromkeys(range(log.shards), 30)


async def test_a_reader_is_woken_by_any_shard_and_goes_on_from_each_ones_position(
    log: RedisTransport,
) -> None:
    writer, reader = log.writer(), log.reader()
    assert (await reader.read(0)).at_head
    slice_ = await reader.read(0)
    for shard in reversed(range(log.shards)):
        source = source_of(shard, log.shards)
        waiting = asyncio.create_task(reader.read(10))
        record = source.events(store(1))
        await writer.append([record])
        slice_ = await waiting
        assert slice_.records == [record]
    resumed = log.reader(slice_.position)
    last = source_of(1, log.shards).events(store(2))
    await writer.append([last])
    first = await resumed.read(0)
    assert (first.records, first.trimmed, first.caught_up) == ([last], False, True)


async def test_what_one_shard_lost_by_trimming_is_told_and_the_others_go_on(
    log: RedisTransport,
) -> None:
    writer, reader = log.writer(records_max=10 * log.shards), log.reader()
    quiet, busy = source_of(0, log.shards), source_of(log.shards - 1, log.shards)
    await writer.append([quiet.events(store(1)), busy.events(store(1))])
    await read_records(reader, 2)
    flood = [busy.events(store(number)) for number in range(2, 1_002)]
    last = quiet.events(store(2))
    for start in range(0, 1_000, 100):
        await writer.append(flood[start : start + 100])
    await writer.append([last])
    got, lost = list[bytes](), 0
    while not got or flood[-1] not in got or last not in got:
        slice_ = await reader.read(1)
        got += slice_.records
        lost += slice_.trimmed
    assert lost == 1
    assert got.count(last) == 1
    kept = [record for record in got if record != last]
    assert kept == flood[-len(kept) :]
    assert len(kept) < 1_000
    assert not (await reader.read(0)).trimmed


async def test_another_number_of_shards_is_one_clear_error_for_both_sides(
    log: RedisTransport,
) -> None:
    await log.writer().append([b"x"])
    wrong = log.url.partition("?")[0] + "?shards=2"
    strange = source_of(1, 2).events(store(1))
    says = rf"has {log.shards} shards, this URL has 2; write \?shards={log.shards} in the URL"
    writer = RedisWriter(open_redis(wrong), cell=log.cell)
    reader = RedisReader(open_redis(wrong), cell=log.cell)
    log.open += [writer, reader]
    for call in (
        lambda: writer.append([strange]),
        lambda: writer.append([]),
        lambda: reader.read(0),
    ):
        with pytest.raises(LogUnavailable, match=says):
            await call()
    assert (await log.reader().read(0)).records == [b"x"]


async def test_probes_show_every_shard(log: RedisTransport) -> None:
    writer = log.writer()
    assert isinstance(writer, RedisWriter)
    parts = await writer.append_probe(b"mark")
    assert parts == set(range(log.shards))
    probes: set[tuple[int, bytes]] = set()
    reader = log.reader()
    async with asyncio.timeout(10):
        while len(probes) < len(parts):
            probes.update((await reader.read(0.5)).probes)
    assert probes == {(part, b"mark") for part in parts}


async def test_a_clusters_shards_lie_on_all_of_its_nodes(
    on_cluster: RedisTransport, redis_cluster: EmbeddedValkeyCluster
) -> None:
    sources = [source_of(shard, 8) for shard in range(8)]
    await on_cluster.writer().append([each.events(store(1)) for each in sources])
    keys = set(streams(on_cluster).values())
    lying = [await log_keys(node, on_cluster.cell) for node in redis_cluster.nodes]
    assert all(lying)
    assert {key for there in lying for key in there} == keys


async def log_keys(node: EmbeddedValkey, cell: str) -> set[str]:
    """Return the keys of a cell's streams that lie on one node."""
    client: Any
    async with redis.Redis(port=node.port) as client:
        return {key.decode() for key in await client.keys(f"kvatlas:{{{cell}*:log:*")}


async def test_a_node_that_lost_its_data_costs_its_own_shards_alone(
    on_cluster: RedisTransport, redis_cluster: EmbeddedValkeyCluster
) -> None:
    writer, reader = on_cluster.writer(), on_cluster.reader()
    sources = [source_of(shard, 8) for shard in range(8)]
    before = [await writer.append([each.events(store(1))]) for each in sources]
    await read_records(reader, 8)
    keys = streams(on_cluster)
    client: Any
    there = await log_keys(redis_cluster.nodes[0], on_cluster.cell)
    async with redis.Redis(port=redis_cluster.nodes[0].port) as client:
        await client.flushall()
    struck = {shard for shard, key in keys.items() if key in there}
    assert 0 < len(struck) < 8
    again = [each.events(store(2)) for each in sources]
    after = [await writer.append([record]) for record in again]
    changed = {shard for shard in range(8) if before[shard].identity != after[shard].identity}
    assert changed == struck
    got, lost = list[bytes](), False
    while len(got) < 8:
        slice_ = await reader.read(1)
        got += slice_.records
        lost |= slice_.trimmed
    assert lost
    assert sorted(got) == sorted(again)


async def test_a_slot_that_moves_takes_its_shard_along(
    on_cluster: RedisTransport, redis_cluster: EmbeddedValkeyCluster
) -> None:
    writer, reader = on_cluster.writer(), on_cluster.reader()
    source = source_of(3, 8)
    first, second = source.events(store(1)), source.events(store(2))
    await writer.append([first])
    assert await read_records(reader, 1) == [first]
    reading = asyncio.create_task(read_over(reader))  # at the head, while the slot moves
    await move_slot(redis_cluster, streams(on_cluster)[3])
    await outlast(lambda: writer.append([second]))
    slice_ = await reading
    assert (slice_.records, slice_.trimmed) == ([second], False)


async def read_over(reader: LogReader) -> LogSlice:
    """Return the next slice that has records, over outages."""
    slice_ = await outlast(lambda: reader.read(0.5))
    while not slice_.records:
        slice_ = await outlast(lambda: reader.read(0.5))
    return slice_


async def move_slot(cluster: EmbeddedValkeyCluster, key: str) -> None:
    """Move a key's slot to another node, as an operator's tool does it."""
    clients: list[Any] = [redis.Redis(port=node.port) for node in cluster.nodes]
    try:
        slot = await clients[0].execute_command("CLUSTER", "KEYSLOT", key)
        ids = [(await each.execute_command("CLUSTER", "MYID")).decode() for each in clients]
        counts = [
            await each.execute_command("CLUSTER", "COUNTKEYSINSLOT", slot) for each in clients
        ]
        source = counts.index(max(counts))
        target = (source + 1) % len(clients)
        set_slot = ("CLUSTER", "SETSLOT", slot)
        await clients[target].execute_command(*set_slot, "IMPORTING", ids[source])
        await clients[source].execute_command(*set_slot, "MIGRATING", ids[target])
        keys = await clients[source].execute_command("CLUSTER", "GETKEYSINSLOT", slot, 10)
        port = cluster.nodes[target].port
        await clients[source].execute_command(
            "MIGRATE", "127.0.0.1", port, "", 0, 5_000, "KEYS", *keys
        )
        for each in (clients[target], clients[source], *clients):
            await each.execute_command(*set_slot, "NODE", ids[target])
    finally:
        for each in clients:
            await each.aclose()


async def test_a_node_that_is_gone_is_named_and_the_log_waits_for_it(
    on_cluster: RedisTransport, redis_cluster: EmbeddedValkeyCluster
) -> None:
    writer, reader = on_cluster.writer(), on_cluster.reader()
    await writer.append([])
    await reader.read(0)
    redis_cluster.nodes[1].kill()
    name = f"node 127.0.0.1:{redis_cluster.nodes[1].port}"
    for call in (lambda: writer.append([]), lambda: reader.read(0)):
        with pytest.raises(LogUnavailable, match=f"{name} cannot be reached"):
            await call()


async def test_a_node_that_stalls_is_given_up_and_used_when_it_goes_on(
    on_cluster: RedisTransport, redis_cluster: EmbeddedValkeyCluster
) -> None:
    impatient = [open_redis(redis_cluster.url, answer_s=1.0) for _ in range(2)]
    writer = RedisWriter(impatient[0], cell=on_cluster.cell)
    reader = RedisReader(impatient[1], cell=on_cluster.cell)
    on_cluster.open += [writer, reader]
    await outlast(lambda: writer.append([]))
    await outlast(lambda: reader.read(0))
    struck = redis_cluster.nodes[1]
    assert struck.pid is not None
    with paused(struck.pid):
        for call in (lambda: writer.append([]), lambda: reader.read(0)):
            with pytest.raises(LogUnavailable, match="does not answer within 1 s"):
                await call()
    record = RecordSource().events(store(1))
    await outlast(lambda: writer.append([record]))
    assert record in (await read_over(reader)).records


async def test_a_url_of_one_server_and_one_of_a_cluster_are_not_mistaken_for_each_other(
    on_cluster: RedisTransport, redis_cluster: EmbeddedValkeyCluster
) -> None:
    one = RedisReader(
        open_redis(f"redis://127.0.0.1:{redis_cluster.nodes[0].port}?shards=8"),
        cell=on_cluster.cell,
    )
    async with EmbeddedValkey() as valkey:
        nodes = RedisReader(open_redis(f"redis+cluster://127.0.0.1:{valkey.port}"), cell="c")
        on_cluster.open += [one, nodes]
        with pytest.raises(LogUnavailable, match=r"node of a cluster; write redis\+cluster://"):
            await one.read(0)
        with pytest.raises(LogUnavailable, match="is not a cluster; write redis:// for"):
            await nodes.read(0)
