"""A claim's text, and which of two publishers yields."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvatlas_events import Claim, WorkerKey
from kvatlas_events.claims import decode_claim

WORKER = WorkerKey(7, 1)


@given(
    worker_id=st.integers(0, 2**64 - 1),
    dp_rank=st.integers(0, 2**32 - 1),
    epoch=st.integers(0, 1_700_000_000_000_000),
    instance_id=st.integers(0, 2**64 - 1),
    publisher=st.text(),
)
def test_what_is_encoded_is_decoded(
    worker_id: int, dp_rank: int, epoch: int, instance_id: int, publisher: str
) -> None:
    claim = Claim(WorkerKey(worker_id, dp_rank), epoch, instance_id, publisher)
    assert decode_claim(claim.encode()) == claim
    assert decode_claim(claim.encode(), claim.worker) == claim


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"7/1",
        b"7/1 5",
        b"7/1 -5 00000000000000ff host-1",
        b"7/1 5 ff host-1",
        b"7/1 5 00000000000000fg host-1",
        b"\xff/1 5 00000000000000ff host-1",
        b"7/1 " + b"9" * 21 + b" 00000000000000ff host-1",
        b"8/1 5 00000000000000ff host-1",
    ],
)
def test_what_is_no_claim_of_the_worker_is_none(text: bytes) -> None:
    assert decode_claim(text, WORKER) is None


def test_a_name_that_is_no_text_is_a_name_all_the_same() -> None:
    claim = decode_claim(b"7/1 5 00000000000000ff \xffhost\n1")
    assert claim == Claim(WORKER, 5, 255, "\N{REPLACEMENT CHARACTER}host\n1")


def test_an_epoch_that_every_indexer_would_reject_fences_nobody() -> None:
    now_us = time.time_ns() // 1_000
    near, far = now_us + 500_000_000, now_us + 700_000_000
    assert decode_claim(Claim(WORKER, near, 1, "p").encode()) is not None
    assert decode_claim(Claim(WORKER, far, 1, "p").encode()) is None


def test_the_older_epoch_yields_and_nobody_to_himself() -> None:
    older, newer = Claim(WORKER, 5, 1, "old"), Claim(WORKER, 6, 2, "new")
    assert older.yields_to(newer)
    assert not newer.yields_to(older)
    assert not older.yields_to(Claim(WORKER, 6, 1, "old"))
    assert older.yields_to(Claim(WORKER, 5, 2, "twin"))


def test_the_fence_names_the_rival() -> None:
    older, newer = Claim(WORKER, 5, 1, "old"), Claim(WORKER, 6, 2, "host-9")
    assert str(older.fenced_by(newer, "redis://h:1")) == (
        "redis://h:1: worker 7/1 is in epoch 6 of publisher host-9 already; ours is 5"
    )
