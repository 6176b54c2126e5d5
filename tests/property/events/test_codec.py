"""The codec: what goes in comes out, and nothing but what went in."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from kvatlas_events import (
    BATCH_EVENTS_MAX,
    BATCH_HASHES_MAX,
    RECORD_BYTES_MAX,
    SNAPSHOT_PART_HASHES_MAX,
    Batch,
    Clear,
    Hashes,
    Header,
    Heartbeat,
    Load,
    Remove,
    Shutdown,
    ShutdownReason,
    SnapshotPart,
    Store,
    Tier,
    TierDigest,
    WorkerKey,
    digest,
    encode_batch,
    snapshot_records,
)
from kvatlas_native import progress
from kvatlas_wire import seal_record
from kvatlas_wire.v1 import events_pb2 as pb
from tests.headers import header
from tests.reference.batch_decoder import MalformedRecord, decode_batch

u32 = st.integers(0, 2**32 - 1)
u64 = st.integers(0, 2**64 - 1)
texts = st.text(max_size=12)
tiers = st.sampled_from(Tier)
hashes = arrays.arrays(np.uint64, st.integers(0, 300))
headers = st.builds(
    Header,
    worker=st.builds(WorkerKey, u64, u32),
    epoch=u64,
    instance_id=u64,
    cell=texts,
    model=texts,
    block_size=u32,
    hash_contract=texts,
    publisher=texts,
)
events = st.one_of(
    st.builds(Store, st.none() | u64, hashes, tiers),
    st.builds(Remove, hashes, tiers),
    st.builds(Clear, st.none() | tiers),
    st.builds(Shutdown, st.sampled_from(ShutdownReason)),
)
digests = st.lists(st.builds(TierDigest, tiers, u64, u64), max_size=4).map(tuple)
parts = st.integers(1, 2**32 - 1).flatmap(
    lambda count: st.builds(
        SnapshotPart,
        as_of_event_id=u64,
        part=st.integers(0, count - 1),
        parts=st.just(count),
        tier=tiers,
        sequence_hashes=hashes,
        digests=digests,
    )
)
heartbeats = st.builds(
    Heartbeat,
    last_event_id=u64,
    digests=digests,
    load=st.none()
    | st.builds(
        Load, requests_running=u32, requests_waiting=u32, kv_usage=st.floats(0, 1, width=64)
    ),
    capacity_blocks=u64,
    engine_url=texts,
    publisher_rpc=texts,
    role=st.sampled_from(["", "prefill", "decode"]),
    labels=st.dictionaries(texts, texts, max_size=3),
    sent_unix_us=u64,
)
batches = st.one_of(
    st.builds(
        Batch,
        header=headers,
        first_event_id=st.integers(1, 2**64 - 10),
        events=st.lists(events, min_size=1, max_size=5).map(tuple),
    ),
    st.builds(Batch, header=headers, snapshot=parts),
    st.builds(Batch, header=headers, heartbeat=heartbeats),
)
HEADER = header()


def some_hashes(count: int) -> Hashes:
    return np.random.default_rng(count).integers(0, 2**64, count, dtype=np.uint64)


def snapshot_part(count: int, part: int = 0, parts: int = 1) -> SnapshotPart:
    return SnapshotPart(
        as_of_event_id=3,
        part=part,
        parts=parts,
        tier=Tier.HOST,
        sequence_hashes=some_hashes(count),
        digests=(),
    )


@given(batches)
def test_a_batch_comes_back_as_it_went(batch: Batch) -> None:
    assert decode_batch(encode_batch(batch)) == batch


@given(batches, st.data())
@settings(max_examples=50)
def test_a_flipped_bit_is_rejected(batch: Batch, data: st.DataObject) -> None:
    record = bytearray(encode_batch(batch))
    bit = data.draw(st.integers(0, len(record) * 8 - 1))
    record[bit // 8] ^= 1 << bit % 8
    with pytest.raises(MalformedRecord):
        decode_batch(bytes(record))


@given(batches, st.data())
@settings(max_examples=50)
def test_a_truncated_record_is_rejected(batch: Batch, data: st.DataObject) -> None:
    record = encode_batch(batch)
    with pytest.raises(MalformedRecord):
        decode_batch(record[: data.draw(st.integers(0, len(record) - 1))])


@given(st.binary(max_size=300))
def test_arbitrary_payloads_decode_or_are_malformed_and_nothing_else(payload: bytes) -> None:
    try:
        batch = decode_batch(seal_record(payload))
    except MalformedRecord:
        return
    assert decode_batch(encode_batch(batch)) == batch


def malformed(message: pb.Batch) -> str:
    with pytest.raises(MalformedRecord) as error:
        decode_batch(seal_record(message.SerializeToString()))
    return str(error.value)


def test_what_is_wrong_is_named() -> None:
    worker = pb.Header(worker=pb.Worker(worker_id=1))
    clear = pb.Event(clear=pb.Clear())
    assert "without a header" in malformed(pb.Batch(first_event_id=1, events=[clear]))
    assert "names its worker" in malformed(pb.Batch(header=pb.Header(epoch=3)))
    assert "batch of nothing" in malformed(pb.Batch(header=worker))
    both = pb.Batch(header=worker, first_event_id=1, events=[clear], heartbeat=pb.Heartbeat())
    assert malformed(both) == "a batch of events and a heartbeat"
    assert "count from 1" in malformed(pb.Batch(header=worker, events=[clear]))
    numbered = pb.Batch(header=worker, first_event_id=4, heartbeat=pb.Heartbeat())
    assert malformed(numbered) == "a heartbeat with event_id 4: it uses none"
    past = pb.Batch(header=worker, first_event_id=2**64 - 1, events=[clear, clear])
    assert "past 64 bits" in malformed(past)
    no_kind = pb.Batch(header=worker, first_event_id=1, events=[pb.Event()])
    assert "no kind" in malformed(no_kind)
    no_tier = pb.Event(store=pb.Store(sequence_hashes=[1]))
    assert "unknown tier 0" in malformed(
        pb.Batch(header=worker, first_event_id=1, events=[no_tier])
    )
    no_reason = pb.Event(shutdown=pb.Shutdown())
    assert "unknown reason 0" in malformed(
        pb.Batch(header=worker, first_event_id=1, events=[no_reason])
    )
    beyond = pb.Batch(header=worker, snapshot=pb.Snapshot(part=2, parts=2, tier=pb.TIER_HOST))
    assert "part 2 of 2" in malformed(beyond)
    with pytest.raises(MalformedRecord, match="not a kvatlas record"):
        decode_batch(b"hello")


def test_limits_hold_on_both_sides() -> None:
    def store(count: int) -> Batch:
        event = Store(None, some_hashes(count), Tier.DEVICE)
        return Batch(header=HEADER, first_event_id=1, events=(event,))

    at_limit = store(BATCH_HASHES_MAX)
    assert decode_batch(encode_batch(at_limit)) == at_limit
    with pytest.raises(ValueError, match="65537 hashes in a batch"):
        encode_batch(store(BATCH_HASHES_MAX + 1))
    many = Batch(header=HEADER, first_event_id=1, events=(Clear(),) * BATCH_EVENTS_MAX)
    assert decode_batch(encode_batch(many)) == many
    too_many = Batch(header=HEADER, first_event_id=1, events=(Clear(),) * (BATCH_EVENTS_MAX + 1))
    with pytest.raises(ValueError, match="4097 events"):
        encode_batch(too_many)
    with pytest.raises(ValueError, match="65537 hashes in a snapshot part"):
        encode_batch(Batch(header=HEADER, snapshot=snapshot_part(SNAPSHOT_PART_HASHES_MAX + 1)))
    with pytest.raises(MalformedRecord, match="at most 1048576"):
        decode_batch(seal_record(bytes(RECORD_BYTES_MAX)))


def test_digest_is_the_xor() -> None:
    assert digest(np.array([], dtype=np.uint64)) == 0
    assert digest(np.array([1, 2, 2**64 - 1], dtype=np.uint64)) == (2**64 - 1) ^ 3


@given(
    st.dictionaries(tiers, st.integers(0, 3 * SNAPSHOT_PART_HASHES_MAX // 2), max_size=4),
)
@settings(max_examples=20)
def test_a_snapshots_parts_hold_the_mirror(counts: dict[Tier, int]) -> None:
    mirror = {tier: some_hashes(count) for tier, count in counts.items()}
    batches = [decode_batch(record) for record in snapshot_records(HEADER, 42, mirror)]
    snapshots = [batch.snapshot for batch in batches if batch.snapshot is not None]
    assert len(snapshots) == len(batches) >= 1
    assert [each.part for each in snapshots] == list(range(len(snapshots)))
    assert {each.parts for each in snapshots} == {len(snapshots)}
    assert {each.as_of_event_id for each in snapshots} == {42}
    assert {batch.header for batch in batches} == {HEADER}
    for tier, expected in mirror.items():
        cuts = [each.sequence_hashes for each in snapshots if each.tier == tier]
        got = np.concatenate(cuts) if cuts else np.empty(0, dtype=np.uint64)
        assert np.array_equal(got, expected)
        if len(expected):
            assert TierDigest(tier, len(expected), digest(expected)) in snapshots[0].digests
    assert len({each.digests for each in snapshots}) == 1


def test_an_empty_mirror_is_one_part() -> None:
    (record,) = snapshot_records(HEADER, 0, {})
    snapshot = decode_batch(record).snapshot
    assert snapshot is not None
    assert (snapshot.part, snapshot.parts, len(snapshot.sequence_hashes)) == (0, 1, 0)


def test_progress_is_where_a_receiver_should_be() -> None:
    numbered = Batch(header=HEADER, first_event_id=5, events=(Clear(), Clear(), Clear()))
    assert progress(encode_batch(numbered)) == (7, 1, 5, 7)
    first, last = snapshot_part(3, 0, 2), snapshot_part(3, 1, 2)
    assert progress(encode_batch(Batch(header=HEADER, snapshot=first))) is None
    assert progress(encode_batch(Batch(header=HEADER, snapshot=last))) == (7, 1, 5, 3)
    alive = Heartbeat(
        last_event_id=9,
        digests=(),
        load=None,
        capacity_blocks=0,
        engine_url="",
        publisher_rpc="",
        role="",
    )
    assert progress(encode_batch(Batch(header=HEADER, heartbeat=alive))) == (7, 1, 5, 9)
    with pytest.raises(ValueError, match="not a kvatlas record"):
        progress(b"x")
