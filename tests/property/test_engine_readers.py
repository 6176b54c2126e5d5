"""The specified readers turn any bytes into events or refusals, never into other exceptions."""

import contextlib

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from kvatlas_engines.frames import MalformedMessage, parse_frames
from tests.reference.engines.events import Stored
from tests.reference.engines.payload import MalformedPayload, decode_payload
from tests.reference.engines.readers import READERS

SCALARS: st.SearchStrategy[object] = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=8)
    | st.binary(max_size=8)
)


def nested(inner: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
    return st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=5), inner)


ANYTHING: st.SearchStrategy[object] = st.recursive(SCALARS, nested, max_leaves=10)
NAMES = st.sampled_from(
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
    ]
)
KINDS = st.sampled_from(["BlockStored", "BlockRemoved", "AllBlocksCleared", "Other"])
LIKELY = {
    "block_hashes": st.lists(st.integers(0, 9), max_size=3),
    "token_ids": st.lists(st.integers(0, 9), max_size=6),
    "block_size": st.just(2),
}


@st.composite
def map_events(draw: st.DrawFn) -> dict[str, object]:
    odd = draw(st.dictionaries(NAMES, ANYTHING, max_size=4))
    return {"type": draw(KINDS)} | draw(st.fixed_dictionaries(LIKELY)) | odd


@st.composite
def array_events(draw: st.DrawFn) -> list[object]:
    return [draw(KINDS), *draw(st.lists(ANYTHING, max_size=12))]


MAP_EVENTS = map_events()
ARRAY_EVENTS = array_events()
EVENTS: st.SearchStrategy[list[object]] = st.lists(MAP_EVENTS | ARRAY_EVENTS | ANYTHING, max_size=4)


def read_all(payload: bytes) -> None:
    for make in READERS.values():
        reader = make(2)
        try:
            batch = decode_payload(payload, reader.order)
        except MalformedPayload:
            continue
        for event in reader.read(batch.events):
            if isinstance(event, Stored):
                assert event.tokens.shape == (len(event.block_hashes), 2)
                assert event.items is None or len(event.items) == len(event.block_hashes)


@given(EVENTS)
def test_any_events_are_read_or_refused(events: list[object]) -> None:
    read_all(msgspec.msgpack.encode([1.0, events, 0]))


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(payload: bytes) -> None:
    read_all(payload)


@given(MAP_EVENTS, st.data())
def test_any_flipped_byte_is_read_or_refused(event: object, data: st.DataObject) -> None:
    payload = bytearray(msgspec.msgpack.encode([1.0, [event], 0]))
    position = data.draw(st.integers(0, len(payload) - 1))
    payload[position] ^= data.draw(st.integers(1, 255))
    read_all(bytes(payload))


@given(st.lists(st.binary(max_size=10), max_size=5))
def test_any_frames_are_read_or_refused(frames: list[bytes]) -> None:
    with contextlib.suppress(MalformedMessage):
        parse_frames(frames)
