"""Promises of the Redis transport alone: identities, credentials, servers that misbehave."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

import pytest
import redis.asyncio as redis

from kvatlas_events import LogUnavailable
from kvatlas_events.redis import group_reader
from kvatlas_events.redis.open import Redis, open_redis
from kvatlas_events.redis.reader import RedisReader
from kvatlas_events.redis.writer import RedisWriter
from kvatlas_testing.child_process import paused
from kvatlas_testing.valkey import EmbeddedValkey
from tests.conformance.log.outages import outlast
from tests.conformance.log.proxy import TcpProxy

Client = Any
"""The library's client, whose own types are unknown in part."""
STREAM = "kvatlas:{test}:log:0"
IDENTITY = "kvatlas:{test}:identity"
PASSWORD = "s3cret/of:ours"  # noqa: S105 - of a server of ours
PASSWORD_IN_URL = "s3cret%2Fof%3Aours"  # noqa: S105 - the same


@pytest.fixture
async def server() -> AsyncGenerator[EmbeddedValkey, None]:
    async with EmbeddedValkey() as valkey:
        yield valkey


@pytest.fixture
async def client(server: EmbeddedValkey) -> AsyncGenerator[Any, None]:
    client: Client = redis.Redis(port=server.port)
    yield client
    await client.aclose()


@pytest.fixture
async def open_server() -> AsyncGenerator[Callable[..., Redis], None]:
    opened: list[Redis] = []

    def open_one(url: str, **options: float) -> Redis:
        opened.append(open_redis(url, **options))
        return opened[-1]

    yield open_one
    for each in opened:
        await each.close()


@pytest.fixture
def writer(server: EmbeddedValkey, open_server: Callable[..., Redis]) -> RedisWriter:
    return RedisWriter(open_server(server.url), cell="test")


@pytest.fixture
def reader(server: EmbeddedValkey, open_server: Callable[..., Redis]) -> RedisReader:
    return RedisReader(open_server(server.url), cell="test")


async def why_unavailable(call: Awaitable[object]) -> str:
    with pytest.raises(LogUnavailable) as unavailable:
        await call
    return str(unavailable.value)


async def test_one_entry_a_record_in_the_documented_place(
    writer: RedisWriter, client: Client
) -> None:
    await writer.append([b"a", b"b"])
    assert [fields for _, fields in await client.xrange(STREAM)] == [{b"r": b"a"}, {b"r": b"b"}]


async def test_append_times_are_the_entries_milliseconds(
    reader: RedisReader, client: Client
) -> None:
    await client.xadd(STREAM, {"r": "x"}, id="1700000000123-7")
    assert (await reader.read(0)).appended_unix_ms == [1_700_000_000_123]


async def test_a_foreign_message_is_counted_and_left_out(
    writer: RedisWriter, reader: RedisReader, client: Client
) -> None:
    await writer.append([b"before"])
    await client.xadd(STREAM, {"greeting": "hello"})
    await writer.append([b"after"])
    slice_ = await reader.read(0)
    assert (slice_.records, slice_.foreign) == ([b"before", b"after"], 1)
    assert len(slice_.appended_unix_ms) == 2


async def test_a_server_that_lost_its_data_shows_to_both_sides(
    server: EmbeddedValkey, writer: RedisWriter, reader: RedisReader
) -> None:
    before = await writer.append([b"lost"])
    assert (await writer.append([])).identity == before.identity
    assert not (await reader.read(0)).trimmed
    server.kill()
    server.start()
    after = await outlast(lambda: writer.append([b"new"]))
    assert after.identity not in {None, before.identity}
    slice_ = await outlast(lambda: reader.read(1))
    assert (slice_.records, slice_.trimmed) == ([b"new"], True)
    assert slice_.position is not None
    assert slice_.position.identity == after.identity


async def test_a_flushed_server_is_noticed_on_a_living_connection(
    writer: RedisWriter, reader: RedisReader, client: Client
) -> None:
    await writer.append([b"lost"])
    await reader.read(0)
    await client.flushall()
    await writer.append([b"new"])
    slice_ = await reader.read(0)
    assert (slice_.records, slice_.trimmed) == ([b"new"], True)


async def test_a_log_that_lost_its_newest_records_is_read_again(
    reader: RedisReader, client: Client
) -> None:
    for entry_id in ("1000-0", "2000-0", "3000-0"):
        await client.xadd(STREAM, {"r": entry_id}, id=entry_id)
    assert len((await reader.read(0)).records) == 3
    # As after a restart from an older file: the same identity, ids that went back.
    await client.delete(STREAM)
    await client.xadd(STREAM, {"r": "1000-0"}, id="1000-0")
    await client.client_kill_filter(skipme=True)
    slice_ = await outlast(lambda: reader.read(0))
    assert (slice_.records, slice_.trimmed) == ([b"1000-0"], True)


async def test_a_stream_emptied_behind_the_reader_loses_it_nothing(
    writer: RedisWriter, reader: RedisReader, client: Client
) -> None:
    await writer.append([b"read"])
    await reader.read(0)
    await client.xtrim(STREAM, maxlen=0, approximate=False)
    slice_ = await reader.read(0)
    assert (slice_.records, slice_.trimmed) == ([], False)


async def test_trimming_keeps_about_the_newest(
    server: EmbeddedValkey, open_server: Callable[..., Redis], client: Client
) -> None:
    writer = RedisWriter(open_server(server.url), cell="test", records_max=100)
    for _ in range(20):
        await writer.append([b"x"] * 100)
    assert 100 <= await client.xlen(STREAM) < 400


async def test_slices_of_large_records_stay_small(writer: RedisWriter, reader: RedisReader) -> None:
    for _ in range(10):
        await writer.append([bytes(1 << 20)] * 10)
    sizes: list[int] = []
    while sum(sizes) < 100:
        sizes.append(len((await reader.read(0)).records))
    assert sizes == [64, 16, 16, 4]


async def test_a_wrong_password_is_said_and_none_is_shown(
    open_server: Callable[..., Redis],
) -> None:
    async with EmbeddedValkey(password="another") as server:  # noqa: S106 - the same
        address = f"127.0.0.1:{server.port}"
        for url in (f"redis://:{PASSWORD_IN_URL}@{address}", f"redis://{address}"):
            unusable = open_server(url)
            for call in (
                RedisWriter(unusable, cell="test").append([b"x"]),
                RedisReader(unusable, cell="test").read(0),
            ):
                why = await why_unavailable(call)
                assert "does not let us in" in why
                assert address in why
                assert "s3cret" not in why


async def test_a_password_with_special_characters_opens(
    open_server: Callable[..., Redis],
) -> None:
    async with EmbeddedValkey(password=PASSWORD) as server:
        url = f"redis://:{PASSWORD_IN_URL}@127.0.0.1:{server.port}"
        writer = RedisWriter(open_server(url), cell="test")
        await writer.append([b"x"])
        assert "s3cret" not in writer.name


async def test_an_account_with_the_documented_rights_is_enough(
    server: EmbeddedValkey, client: Client, open_server: Callable[..., Redis]
) -> None:
    rights = "+set +get +xadd +xread +xlen +xinfo +multi +exec +ping"
    await client.execute_command(
        *("ACL", "SETUSER", "narrow", "on", ">secret", "~kvatlas:*", *rights.split())
    )
    narrow = open_server(f"redis://narrow:secret@127.0.0.1:{server.port}")
    await RedisWriter(narrow, cell="test").append([b"x"])
    assert (await RedisReader(narrow, cell="test").read(0.01)).records == [b"x"]
    await client.execute_command("ACL", "SETUSER", "narrow", "-xadd")
    why = await why_unavailable(RedisWriter(narrow, cell="test").append([b"x"]))
    assert "does not let us in" in why
    assert "xadd" in why


async def test_a_server_that_is_no_redis_is_named_as_such(
    open_server: Callable[..., Redis],
) -> None:
    async def refuse(stream: asyncio.StreamReader, answer: asyncio.StreamWriter) -> None:
        await stream.read(1)
        answer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await answer.drain()
        answer.close()

    async with await asyncio.start_server(refuse, "127.0.0.1", 0) as stranger:
        port = stranger.sockets[0].getsockname()[1]
        writer = RedisWriter(open_server(f"redis://127.0.0.1:{port}"), cell="test")
        assert "not Redis or Valkey" in await why_unavailable(writer.append([b"x"]))


async def test_a_frozen_server_is_given_up_and_used_when_it_thaws(
    server: EmbeddedValkey, open_server: Callable[..., Redis]
) -> None:
    patient = open_server(server.url, answer_s=0.1)
    writer, reader = RedisWriter(patient, cell="test"), RedisReader(patient, cell="test")
    await writer.append([b"before"])
    assert (await reader.read(0)).records == [b"before"]
    assert server.pid is not None
    with paused(server.pid):
        assert "does not answer" in await why_unavailable(writer.append([b"x"]))
        assert "does not answer" in await why_unavailable(reader.read(0.01))
    await writer.append([b"after"])
    got = (await outlast(lambda: reader.read(1))).records
    assert got[-1] == b"after"


async def test_a_key_that_is_no_stream_is_said(
    writer: RedisWriter, reader: RedisReader, client: Client
) -> None:
    await client.set(STREAM, "mine")
    assert "WRONGTYPE" in await why_unavailable(writer.append([b"x"]))
    assert "WRONGTYPE" in await why_unavailable(reader.read(0))
    await client.delete(STREAM)
    await writer.append([b"x"])
    assert (await reader.read(0)).records == [b"x"]


async def test_a_server_out_of_memory_is_said_and_recovers(
    writer: RedisWriter, reader: RedisReader, client: Client
) -> None:
    await client.config_set("maxmemory", 1)
    why = await why_unavailable(writer.append([b"x"]))
    assert "refuses: command not allowed when used memory > 'maxmemory'" in why
    for _ in range(2):  # the same words each time, or each would be said
        assert await why_unavailable(reader.read(0)) == why
    await client.config_set("maxmemory", 0)
    await writer.append([b"x"])
    assert await client.xlen(STREAM) == 1


async def test_a_server_that_became_a_replica_is_left_by_a_writer(
    server: EmbeddedValkey, client: Client, open_server: Callable[..., Redis]
) -> None:
    async with EmbeddedValkey() as promoted, TcpProxy(server.port) as name:
        writer = RedisWriter(open_server(f"redis://127.0.0.1:{name.port}"), cell="test")
        await writer.append([b"before"])
        await client.execute_command("REPLICAOF", "127.0.0.1", promoted.port)
        name.upstream_port = promoted.port
        assert "read only replica" in await why_unavailable(writer.append([b"after"]))
        await outlast(lambda: writer.append([b"after"]))


async def test_a_replica_that_is_cut_off_is_left_by_a_reader(
    server: EmbeddedValkey,
    client: Client,
    open_server: Callable[..., Redis],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(group_reader, "_INSPECT_S", 0.5)
    async with EmbeddedValkey() as promoted, TcpProxy(server.port) as name:
        reader = RedisReader(open_server(f"redis://127.0.0.1:{name.port}"), cell="test")
        await RedisWriter(open_server(server.url), cell="test").append([b"before"])
        assert (await reader.read(0)).records == [b"before"]
        await client.execute_command("REPLICAOF", "127.0.0.1", 1)
        name.upstream_port = promoted.port
        await RedisWriter(open_server(promoted.url), cell="test").append([b"after"])
        got: list[bytes] = []
        async with asyncio.timeout(20):
            while b"after" not in got:
                got += (await outlast(lambda: reader.read(0.1))).records


async def test_cells_share_a_server_and_nothing_else(
    server: EmbeddedValkey, writer: RedisWriter, open_server: Callable[..., Redis]
) -> None:
    await writer.append([b"ours"])
    other = RedisReader(open_server(server.url), cell="other")
    assert (await other.read(0)).records == []
