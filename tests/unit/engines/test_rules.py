"""The readers' rules beyond what the captures happen to hold."""

from typing import Any

import msgspec
import pytest

from kvatlas_engines import EngineName, RefusalReason
from kvatlas_engines.frames import MalformedMessage, parse_frames
from kvatlas_events import Tier
from kvatlas_native import payload_dp_rank
from tests.reference.engines.events import (
    Cleared,
    EngineEvent,
    Removed,
    Stored,
    StoredByHash,
    Unindexable,
)
from tests.reference.engines.payload import MalformedPayload, decode_payload
from tests.reference.engines.readers import READERS

ITEM_A = 3305025233846988428  # XXH3-64 of the 64 letters "a"


def read(*events: object, engine: EngineName = "vllm", block_size: int = 2) -> list[EngineEvent]:
    reader = READERS[engine](block_size)
    payload = msgspec.msgpack.encode([1.5, list(events), 0])
    return reader.read(decode_payload(payload, reader.order).events)


def stored(**fields: object) -> dict[str, Any]:
    return {
        "type": "BlockStored",
        "block_hashes": [1, 2],
        "parent_block_hash": None,
        "token_ids": [10, 11, 12, 13],
        "block_size": 2,
        "lora_id": None,
        "medium": "GPU",
    } | fields


def one(**fields: object) -> Stored:
    (event,) = read(stored(**fields))
    assert isinstance(event, Stored)
    return event


def refused(events: list[EngineEvent]) -> list[tuple[RefusalReason, int]]:
    return [(event.reason, event.blocks) for event in events if isinstance(event, Unindexable)]


def test_the_salt_is_what_is_left_of_block_0_after_the_adapter() -> None:
    event = one(lora_name="sql", extra_keys=[["sql", ["a" * 64, 0], "tenant"], ["sql"]])
    assert (event.lora_name, event.cache_salt) == ("sql", "tenant")
    assert event.items == ((ITEM_A,), ())


def test_a_salt_that_is_named_as_the_adapter_is_still_a_salt() -> None:
    assert one(lora_name="x", extra_keys=[["x", "x"], ["x"]]).cache_salt == "x"
    assert one(lora_name="x", extra_keys=[["x"], ["x"]]).cache_salt is None


def test_a_bare_string_after_block_0_is_an_item() -> None:
    event = one(extra_keys=[None, ["a" * 64]])
    assert (event.cache_salt, event.items) == (None, ((), (ITEM_A,)))


def test_a_bare_string_below_a_parent_is_an_item_in_the_first_block_too() -> None:
    event = one(parent_block_hash=9, extra_keys=[["a" * 64], None])
    assert (event.cache_salt, event.items) == (None, ((ITEM_A,), ()))


def test_empty_strings_are_nothing() -> None:
    event = one(lora_name="", extra_keys=[[""], [""]])
    assert (event.lora_name, event.cache_salt, event.items) == (None, None, None)


def test_two_bare_strings_in_block_0_are_not_guessed() -> None:
    assert refused(read(stored(extra_keys=[["tenant", "a" * 64], None]))) == [
        (RefusalReason.UNKNOWN_EXTRA_KEYS, 2)
    ]


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        (7, RefusalReason.UNKNOWN_EXTRA_KEYS),
        (b"d", RefusalReason.EMBEDS),
        (["a"], RefusalReason.UNKNOWN_EXTRA_KEYS),
    ],
)
def test_the_blocks_before_one_that_cannot_be_indexed_are(
    key: object, reason: RefusalReason
) -> None:
    head, rest = read(stored(extra_keys=[None, [key]]))
    assert isinstance(head, Stored)
    assert (head.block_hashes, head.tokens.tolist()) == ((1,), [[10, 11]])
    assert refused([rest]) == [(reason, 1)]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"token_ids": [10, 11, 12]}, RefusalReason.LENGTH_MISMATCH),
        ({"extra_keys": [None]}, RefusalReason.LENGTH_MISMATCH),
        ({"block_size": 4}, RefusalReason.WRONG_BLOCK_SIZE),
        ({"lora_id": 3}, RefusalReason.LORA_ID_WITHOUT_NAME),
        ({"medium": "TAPE"}, RefusalReason.UNKNOWN_TIER),
        ({"token_ids": [10, -1, 12, 13]}, RefusalReason.BAD_TOKENS),
        ({"token_ids": [10, 1 << 32, 12, 13]}, RefusalReason.BAD_TOKENS),
        ({"token_ids": [10, 1.0, 12, 13]}, RefusalReason.BAD_TOKENS),
        ({"token_ids": "abcd"}, RefusalReason.MALFORMED_EVENT),
        ({"block_hashes": [1, None]}, RefusalReason.MALFORMED_EVENT),
        ({"block_hashes": None}, RefusalReason.MALFORMED_EVENT),
        ({"parent_block_hash": 1.5}, RefusalReason.MALFORMED_EVENT),
        ({"extra_keys": {"a": 1}}, RefusalReason.MALFORMED_EVENT),
        ({"kv_cache_spec_kind": "mamba"}, RefusalReason.OTHER_GROUP),
        ({"type": "BlockMoved"}, RefusalReason.UNKNOWN_EVENT),
        ({"type": None}, RefusalReason.MALFORMED_EVENT),
    ],
)
def test_what_cannot_be_indexed_says_why(fields: dict[str, Any], reason: RefusalReason) -> None:
    events = read(stored(**fields), {"type": "AllBlocksCleared"})
    assert [got for got, _ in refused(events)] == [reason]
    assert events[1:] == [Cleared(None)]  # one bad event does not spoil its neighbours


@pytest.mark.parametrize("kind", ["full_attention", "mla_attention", "sink_full_attention"])
def test_kinds_that_hold_the_whole_prefix_are_indexed(kind: str) -> None:
    assert one(kv_cache_spec_kind=kind, group_idx=3).block_hashes == (1, 2)


def test_removals_of_other_groups_are_told_apart_by_their_group() -> None:
    events = read(
        stored(group_idx=1, kv_cache_spec_kind="full_attention"),
        {"type": "BlockRemoved", "block_hashes": [1], "medium": "GPU", "group_idx": 0},
        {"type": "BlockRemoved", "block_hashes": [2], "medium": "GPU", "group_idx": 1},
    )
    assert refused(events) == [(RefusalReason.OTHER_GROUP, 1)]
    assert events[2] == Removed((2,), Tier.DEVICE)


def test_without_kinds_the_first_group_stands_for_the_sole_one() -> None:
    events = read(stored(group_idx=0), stored(group_idx=1), stored(group_idx=0))
    assert refused(events) == [(RefusalReason.OTHER_GROUP, 2)]


def test_a_kind_overrules_the_group_that_was_first_without_one() -> None:
    events = read(
        stored(group_idx=0),
        stored(group_idx=1, kv_cache_spec_kind="full_attention"),
        stored(group_idx=0),
    )
    assert isinstance(events[0], Stored)
    assert events[1] == Cleared(None)
    assert isinstance(events[2], Stored)
    assert refused(events) == [(RefusalReason.OTHER_GROUP, 2)]


def test_what_another_group_stored_goes_also_where_the_store_that_ends_it_is_refused() -> None:
    events = read(
        stored(group_idx=0),
        stored(group_idx=1, kv_cache_spec_kind="full_attention", block_size=99),
    )
    assert isinstance(events[0], Stored)
    assert events[1] == Cleared(None)
    assert refused(events) == [(RefusalReason.WRONG_BLOCK_SIZE, 2)]


def test_media_are_named_in_any_case_and_remote_locality_wins() -> None:
    def tier_of(**fields: object) -> Tier:
        return one(**fields).tier

    assert tier_of(medium=None) is Tier.DEVICE
    assert tier_of(medium="cpu") is Tier.HOST
    assert tier_of(medium="FS") is Tier.DISK
    assert tier_of(medium="disk") is Tier.DISK
    assert tier_of(medium="OBJ") is Tier.REMOTE
    assert tier_of(medium="STORAGE") is Tier.DISK
    assert tier_of(medium="STORAGE", locality="LOCAL") is Tier.DISK
    assert tier_of(medium="STORAGE", locality="REMOTE") is Tier.REMOTE


def test_a_tokenless_store_names_blocks_by_hash_alone() -> None:
    assert read(stored(token_ids=[], block_size=0, medium="CPU")) == [
        StoredByHash((1, 2), Tier.HOST)
    ]
    assert read(stored(token_ids=[], block_size=0, block_hashes=[])) == []


def test_old_releases_are_told_as_blind() -> None:
    reader = READERS["vllm"](2)
    short = ["BlockStored", [1], None, [10, 11], 2, None, "GPU"]
    payload = msgspec.msgpack.encode([0.0, [short], 0])
    reader.read(decode_payload(payload, reader.order).events)
    assert reader.blind_spots == {"cache salts", "multimodal items"}


def test_bigrams_must_follow_one_another() -> None:
    def pages(token_ids: object) -> list[EngineEvent]:
        return read(stored(token_ids=token_ids), engine="sglang")

    (event,) = pages([[10, 11], [11, 12], [12, 13], [13, 99]])
    assert isinstance(event, Stored)
    assert event.tokens.tolist() == [[10, 11], [12, 13]]
    for broken in (
        [[10, 11], [12, 13], [13, 14], [14, 15]],
        [[10, 11], [11], [12, 13], [13, 14]],
        [[10, 11], 11, 12, 13],
    ):
        assert refused(pages(broken)) == [(RefusalReason.BROKEN_BIGRAMS, 2)]


def test_pages_that_differ_in_the_token_after_them_are_equal_tokens_under_two_hashes() -> None:
    events = read(
        stored(block_hashes=[1], token_ids=[[10, 11], [11, 12]]),
        stored(block_hashes=[2], token_ids=[[10, 11], [11, 77]]),
        engine="sglang",
    )
    assert [e.tokens.tolist() for e in events if isinstance(e, Stored)] == [[[10, 11]], [[10, 11]]]


def test_newer_releases_may_add_fields_and_older_ones_leave_them_out() -> None:
    assert one(brand_new={"x": [1]}).block_hashes == (1, 2)
    longer = ["BlockRemoved", [1], "GPU", None, "new", "newer"]
    shorter = ["BlockRemoved", [1]]
    assert read(longer, shorter) == [Removed((1,), Tier.DEVICE)] * 2


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xc1",
        b"\x91" * 100_000,
        b"\xdd\xff\xff\xff\xff",
        msgspec.msgpack.encode({"ts": 1}),
        msgspec.msgpack.encode([1.0]),
        msgspec.msgpack.encode(["now", [], 0]),
        msgspec.msgpack.encode([1.0, None, 0]),
        msgspec.msgpack.encode([1.0, [], -1]),
        b"\x93\x00\x91\xa2\xff\xff\x00",
    ],
)
def test_a_payload_that_is_no_batch_is_malformed(payload: bytes) -> None:
    with pytest.raises(MalformedPayload):
        decode_payload(payload, {})
    with pytest.raises(ValueError, match=r"a batch|not msgpack|rank"):
        payload_dp_rank(payload)


@pytest.mark.parametrize("frames", [[], [b""], [b"", b"1234567", b"x"], [b"", b"\xff" * 8, b"x"]])
def test_frames_without_a_sequence_number_are_malformed(frames: list[bytes]) -> None:
    with pytest.raises(MalformedMessage):
        parse_frames(frames)


@pytest.mark.parametrize("named", [[], [None], [7]])
def test_a_batch_names_its_rank_or_none(named: list[int | None]) -> None:
    payload = msgspec.msgpack.encode([1, [], *named])
    rank = named[0] if named else None
    assert decode_payload(payload, {}).dp_rank == payload_dp_rank(payload) == rank
