"""Keys of the shards, and the shard of each record: promises to all releases."""

import random
import string

import pytest
from redis.crc import key_slot

from kvatlas_events import LogUnavailable, WorkerKey
from kvatlas_events.redis.keys import claim_key, identity_key, shard_of, stream_key
from kvatlas_events.redis.server import RedisServer
from kvatlas_events.redis.shard_group import ShardGroup, group_of_shard, group_on_server
from kvatlas_events.redis.url import RedisUrl
from tests.unit.cell.record_source import RecordSource, store

SLOTS = 16_384


def group(shards: int) -> ShardGroup:
    return group_on_server(RedisServer(RedisUrl.of("redis://h")), "blue", shards)


def test_a_log_of_one_shard_lies_where_every_log_has_its_first() -> None:
    assert dict(group(1).streams) == {0: "kvatlas:{blue}:log:0"}
    assert group(1).identity_key == group(3).identity_key == "kvatlas:{blue}:identity"
    assert list(group(3).streams.values()) == [
        "kvatlas:{blue}:log:0",
        "kvatlas:{blue:1}:log:1",
        "kvatlas:{blue:2}:log:2",
    ]


def test_a_shards_keys_lie_in_one_slot() -> None:
    for shard in range(64):
        keys = (identity_key("blue", shard), stream_key("blue", shard))
        slots = {key_slot(key.encode()) for key in keys}
        assert len(slots) == 1


def test_no_two_cells_have_a_key_in_common_whatever_their_names() -> None:
    def keys(cell: str) -> set[str]:
        streams = {stream_key(cell, shard) for shard in range(12)}
        claims = {claim_key(cell, shard, WorkerKey(7, 1)) for shard in range(12)}
        identities = {identity_key(cell, shard) for shard in range(12)}
        return {*streams, *claims, *identities}

    of_all = [keys(cell) for cell in ("blue", "blue:1", "blue:1:1", "blue:11")]
    assert len(set[str]().union(*of_all)) == sum(map(len, of_all)) == 4 * 3 * 12


def test_five_shards_in_a_row_touch_each_of_three_equal_nodes() -> None:
    rng = random.Random(1)
    for _ in range(60):
        cell = "".join(rng.choices(string.ascii_letters + string.digits + ".-_", k=9))
        slots = [key_slot(stream_key(cell, shard).encode()) for shard in range(10)]
        for first in range(5):
            assert {slot * 3 // SLOTS for slot in slots[first : first + 5]} == {0, 1, 2}


def test_a_worker_stays_in_its_shard_whatever_it_says_and_whichever_release_says_it() -> None:
    source = RecordSource(worker_id=7, dp_rank=2)
    shards = {shard_of(source.events(store(number)), 8) for number in range(20)}
    shards.add(shard_of(source.heartbeat(), 8))
    assert shards == {2}
    assert shard_of(RecordSource(worker_id=2**64 - 1).heartbeat(), 8) == 1
    assert shard_of(RecordSource(worker_id=1).heartbeat(), 3) == 1


def test_workers_are_spread_over_all_shards() -> None:
    counts = [0] * 8
    for worker_id in range(800):
        counts[shard_of(RecordSource(worker_id=worker_id).heartbeat(), 8)] += 1
    assert min(counts) > 50


def test_what_is_no_record_goes_to_the_first_shard() -> None:
    assert shard_of(b"hello", 8) == 0


def test_an_identity_says_how_many_shards_there_are() -> None:
    one, four = group(1), group(4)
    mine, theirs = str(one.identify()[0][2]), str(four.identify()[0][2])
    assert one.identity(mine.encode()) == mine
    assert four.identity(theirs.encode()) == theirs
    with pytest.raises(LogUnavailable, match=r"has 4 shards, this URL has 1; write \?shards=4"):
        one.identity(theirs.encode())
    assert "/" not in str(group_of_shard(four.endpoint, "blue", 4, 3).identify()[0][2])
    with pytest.raises(LogUnavailable, match=r"has 1 shards, this URL has 4; write \?shards=1"):
        four.identity(mine.encode())
