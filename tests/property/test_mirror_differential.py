"""The native readers and mirror against the specified ones in Python.

Both read the same bytes, message by message. After each they have the same pending events in the same
order, have refused the same blocks for the same reasons, and hold the same. Most messages here are
likely ones, so that blocks are really stored, evicted and stored again; some hold anything.
"""

import json
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvatlas_engines import EngineName
from kvatlas_engines.frames import Message, parse_frames
from kvatlas_events import (
    Batch,
    Event,
    Header,
    Tier,
    WorkerKey,
    encode_batch,
    encode_header,
)
from kvatlas_hashing import reference as hashing
from kvatlas_publisher.mirror import Mirror
from kvatlas_wire import seal_record
from tests.reference import mirror as reference
from tests.reference import wire_events as wire
from tests.reference.batch_decoder import decode_batch
from tests.reference.engine_mirrors import take_pending
from tests.reference.engines.events import EngineEvent, Unindexable
from tests.reference.engines.payload import MalformedPayload, decode_payload
from tests.reference.engines.readers import READERS

CAPTURES = Path(__file__).parents[1] / "fixtures" / "engines"
SIZE = 2
SEVERAL = 3


HEADER = Header(
    worker=WorkerKey(7, 1),
    epoch=1 << 50,
    instance_id=2**64 - 1,
    cell="c",
    model="m" * 200,
    block_size=SIZE,
    hash_contract="h",
    publisher="p",
)


def sealed(header: Header, first_event_id: int, events: list[Event]) -> list[tuple[int, bytes]]:
    """The records of events by the codec of messages; they all fit one batch."""
    batch = Batch(header=header, first_event_id=first_event_id, events=tuple(events))
    return [(len(events), encode_batch(batch))] if events else []


class Pair:
    """The two mirrors of one engine, with the same messages."""

    def __init__(self, engine: EngineName, block_size: int, blocks_max: int) -> None:
        self.engine, self.block_size, self.blocks_max = engine, block_size, blocks_max
        self.reader = READERS[engine](block_size)
        self.specified = reference.Mirror(blocks_max=blocks_max)
        self.native = Mirror(engine=engine, block_size=block_size, blocks_max=blocks_max)
        self.sealing = Mirror(engine=engine, block_size=block_size, blocks_max=blocks_max)
        self.next_event_id = 1

    def apply(self, payload: bytes, rank: int = 0) -> list[Event]:
        outcome = self.native.apply_payloads([payload], rank)
        self.sealing.apply_payloads([payload], rank)
        try:
            batch = decode_payload(payload, self.reader.order)
        except MalformedPayload:
            assert (outcome.malformed, outcome.consumed) == (1, 1)
            self.specified.suspect_all()
            return self.check([])
        assert outcome.malformed == 0
        if batch.dp_rank not in {None, rank}:
            assert (outcome.consumed, outcome.other_rank) == (0, batch.dp_rank)
            return self.check([])
        assert outcome.engine_clock_s is not None
        assert outcome.engine_clock_s == pytest.approx(batch.ts, nan_ok=True)
        assert outcome.rank_confirmed == (batch.dp_rank is not None)
        events = self.reader.read(batch.events)
        assert [reason for reason, _ in outcome.refusals] == reasons(events)
        assert set(self.native.blind_spots) == self.reader.blind_spots
        return self.check(self.specified.apply_events(events))

    def check(self, expected: list[Event]) -> list[Event]:
        assert take_pending(self.native) == expected
        records = self.sealing.seal(encode_header(HEADER), self.next_event_id)
        assert records == sealed(HEADER, self.next_event_id, expected)
        self.next_event_id += len(expected)
        for asked in ("unindexable", "held_blocks", "suspect_blocks", "suspects_removed"):
            assert getattr(self.native, asked) == getattr(self.specified, asked), asked
        assert self.native.unreachable_blocks() == self.specified.unreachable_blocks()
        assert self.native.digests() == self.specified.digests()
        ours, theirs = self.native.snapshot(), self.specified.snapshot()
        assert {t: sorted(a.tolist()) for t, a in ours.items()} == {
            t: sorted(a.tolist()) for t, a in theirs.items()
        }
        return expected

    def set_capacity(self, blocks: int) -> None:
        for mirror in (self.native, self.sealing, self.specified):
            mirror.capacity_blocks = blocks

    def restart(self) -> None:
        """Go on with mirrors made of the bytes of the old ones; counters begin anew."""
        for name in ("native", "sealing"):
            old: Mirror = getattr(self, name)
            state = bytes(old.export_state())
            new = Mirror(
                engine=self.engine,
                block_size=self.block_size,
                blocks_max=self.blocks_max,
                state=state,
            )
            assert bytes(new.export_state()) == state
            assert new.capacity_blocks == old.capacity_blocks
            assert new.blind_spots == old.blind_spots
            setattr(self, name, new)
        self.specified.unindexable.clear()
        self.specified.suspects_removed = 0
        self.check([])

    def suspect_all(self) -> None:
        for mirror in (self.native, self.sealing, self.specified):
            mirror.suspect_all()


def reasons(events: list[EngineEvent]) -> list[str]:
    """Each reason once, in the order of its first refusal."""
    return list(dict.fromkeys(str(e.reason) for e in events if isinstance(e, Unindexable)))


# --- records ---


def test_a_record_from_columns_is_to_the_byte_the_codecs() -> None:
    """Also against a record written down here, so that both cannot drift together."""
    header = Header(
        worker=WorkerKey(1, 0),
        epoch=2,
        instance_id=3,
        cell="",
        model="",
        block_size=1,
        hash_contract="",
        publisher="",
    )
    mirror = Mirror(engine="vllm", block_size=1, blocks_max=10)
    messages = [
        wire.payload(wire.stored([1], [5]), wire.removed([1])),
        wire.payload(wire.stored([1], [5], tier=Tier.REMOTE), wire.cleared()),
    ]
    mirror.apply_payloads(messages, 0)
    (record,) = mirror.seal(encode_header(header), 300)
    block = hashing.chunk_hashes([5], 1)[0].to_bytes(8, "little").hex()
    payload = bytes.fromhex(
        "0a18 0a09 090100000000000000 1002 190300000000000000 3001"
        "10ac02"
        f"1a0e 0a0c 1208{block} 1801"
        f"1a0e 120c 0a08{block} 1001"
        f"1a0e 0a0c 1208{block} 1804"
        "1a02 1a00"
    )
    assert record == (4, seal_record(payload))
    events = decode_batch(record[1]).events
    assert sealed(header, 300, list(events)) == [record]


# --- captures ---


@pytest.mark.parametrize("block_size", [None, 8])
@pytest.mark.parametrize("path", sorted(CAPTURES.glob("*.json")), ids=lambda path: path.stem)
def test_captures_are_applied_as_specified(path: Path, block_size: int | None) -> None:
    document = json.loads(path.read_text())
    sizes = {"sglang-0.5.17": 4, "sglang-0.5.23": 4}
    published = 0
    pair = Pair(document["engine"], block_size or sizes.get(path.stem, 16), 1_000)
    for entry in document["messages"]:
        message = parse_frames([bytes.fromhex(frame) for frame in entry["frames_hex"]])
        assert isinstance(message, Message)
        rank = msgspec.msgpack.decode(message.payload)[2] or 0
        published += len(pair.apply(message.payload, rank))
        for cut in (len(message.payload) // 2, len(message.payload) - 1):
            pair.apply(message.payload[:cut])
        assert pair.apply(message.payload, rank + 1) == []
    assert published or block_size or path.stem.endswith("dp-ranks")  # which only clears


# --- streams ---

HASHES = st.integers(1, 14) | st.sampled_from([-3, 2**63, b"\x05", bytes(range(1, 33))])
TIERS = st.sampled_from(["GPU", "GPU", "GPU", None, "CPU", "disk", "EXTERNAL", "TAPE"])
TEXTS = st.sampled_from([None, None, None, "", "sql", "x"])
KEYS = st.none() | st.lists(
    st.sampled_from(["sql", "x", "", ["a" * 4, 0], ["b", True], b"digest", 7, None, ["a"], [1, 2]]),
    max_size=2,
)
ANYTHING: st.SearchStrategy[object] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=4)
    | st.binary(max_size=4),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=6,
)
ODD = st.dictionaries(
    st.sampled_from(
        [
            "block_hashes",
            "parent_block_hash",
            "token_ids",
            "block_size",
            "lora_id",
            "lora_name",
            "medium",
            "extra_keys",
            "group_idx",
            "kv_cache_spec_kind",
            "cache_salt",
            "locality",
            "type",
        ]
    ),
    ANYTHING,
    max_size=2,
)


@st.composite
def stored(draw: st.DrawFn) -> dict[str, object]:
    """A chain whose tokens mostly follow from its hashes, so that blocks come back as they were."""
    hashes = draw(st.lists(HASHES, max_size=4))
    numbers = [h if isinstance(h, int) else len(h) for h in hashes]
    tokens = [token for n in numbers for token in [abs(n) % 7] * SIZE]
    event: dict[str, object] = {
        "type": "BlockStored",
        "block_hashes": hashes,
        "parent_block_hash": draw(st.none() | HASHES),
        "token_ids": tokens,
        "block_size": SIZE,
        "lora_id": None,
        "medium": draw(TIERS),
        "lora_name": draw(TEXTS),
    }
    rare: dict[str, st.SearchStrategy[object]] = {
        "token_ids": st.just([]) | st.just([[t, u] for t, u in pairwise(tokens)]),
        "extra_keys": st.lists(KEYS, min_size=len(hashes), max_size=len(hashes)) | st.just([]),
        "cache_salt": TEXTS,
        "group_idx": st.integers(0, 1),
        "kv_cache_spec_kind": st.sampled_from(["full_attention", "mamba", None]),
        "lora_id": st.just(3),
        "locality": st.sampled_from(["REMOTE", "local"]),
    }
    for name in draw(st.lists(st.sampled_from(sorted(rare)), max_size=2)):
        event[name] = draw(rare[name])
    return event


REMOVED = st.fixed_dictionaries(
    {
        "type": st.just("BlockRemoved"),
        "block_hashes": st.lists(HASHES, min_size=1, max_size=4),
        "medium": TIERS,
    },
    optional={"group_idx": st.integers(0, 1)},
)
CLEARED = st.fixed_dictionaries({"type": st.just("AllBlocksCleared")}, optional={"medium": TIERS})
FIELDS = ("block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium")


def as_array(event: Mapping[str, object], engine: EngineName) -> list[object]:
    """The same in the encoding of older releases, as far as that can say it."""
    if event["type"] != "BlockStored":
        return [
            event["type"],
            *([event["block_hashes"], event["medium"]] if "block_hashes" in event else []),
        ]
    more = ("lora_name", "extra_keys", "group_idx", "kv_cache_spec_kind")
    last = ("cache_salt", "session_id", "lora_name")
    names = (*FIELDS, *(more if engine == "vllm" else last))
    values = [event["type"], *(event.get(name) for name in names)]
    while len(values) > SEVERAL and values[-1] is None:
        values.pop()
    return values


@st.composite
def messages(draw: st.DrawFn, engine: EngineName) -> object:
    events: list[object] = []
    for event in draw(st.lists(stored() | stored() | REMOVED | CLEARED, min_size=1, max_size=3)):
        match draw(st.integers(0, 9)):
            case 0:
                events.append(event | draw(ODD))
            case 1 | 2 | 3:
                events.append(as_array(event, engine))
            case 4:
                events.append(draw(ANYTHING))
            case _:
                events.append(event)
    return [draw(st.sampled_from([1.5, 2])), events, draw(st.sampled_from([None, 0, 0, 0, 1]))]


def test_a_refused_store_that_ends_another_group_is_applied_as_specified() -> None:
    pair = Pair("vllm", SIZE, 1_000)
    event = {
        "type": "BlockStored",
        "block_hashes": [1],
        "parent_block_hash": None,
        "token_ids": list(range(SIZE)),
        "block_size": SIZE,
        "group_idx": 0,
    }
    other = event | {"group_idx": 1, "kv_cache_spec_kind": "full_attention", "block_size": 99}
    pair.apply(msgspec.msgpack.encode([1.5, [event, other], None]))
    assert pair.native.held_blocks == 0


@pytest.mark.parametrize("engine", sorted(READERS))
@settings(max_examples=250, deadline=None)
@given(data=st.data())
def test_any_messages_are_applied_as_specified(engine: EngineName, data: st.DataObject) -> None:
    pair = Pair(engine, SIZE, data.draw(st.sampled_from([1_000, 1_000, 6])))
    for message in data.draw(st.lists(messages(engine), min_size=1, max_size=12)):
        match data.draw(st.integers(0, 9)):
            case 0:
                pair.set_capacity(data.draw(st.integers(0, 6)))
            case 1:
                pair.suspect_all()
            case 2 | 3:
                pair.restart()
            case _:
                pass
        payload = bytearray(msgspec.msgpack.encode(message))
        if data.draw(st.integers(0, 9)) == 0:
            payload[data.draw(st.integers(0, len(payload) - 1))] ^= data.draw(st.integers(1, 255))
        if has_extension(bytes(payload)):
            continue
        pair.apply(bytes(payload))


def has_extension(payload: bytes) -> bool:
    """Extensions become Python objects of many kinds, or errors of their own; no engine sends any."""
    met: list[Any] = []
    try:
        msgspec.msgpack.Decoder(ext_hook=lambda code, data: met.append((code, data))).decode(
            payload
        )
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError):
        return any(byte in payload for byte in b"\xc7\xc8\xc9\xd4\xd5\xd6\xd7\xd8")
    return bool(met) or any(byte in payload for byte in b"\xd6\xd7\xc7")
