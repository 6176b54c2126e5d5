"""Whose a record is, read from its first bytes."""

import numpy as np
import pytest

from kvatlas_events import Batch, Clear, Store, Tier, WorkerKey, encode_batch
from kvatlas_events.record_key import key_of_record
from tests.headers import header


def record_of(worker: WorkerKey, *, name: str = "host:1", blocks: int = 3) -> bytes:
    hashes = np.arange(blocks, dtype=np.uint64)
    events = (Store(None, hashes, Tier.DEVICE), Clear())
    return encode_batch(
        Batch(header=header(worker, publisher=name), first_event_id=1, events=events)
    )


@pytest.mark.parametrize(
    "worker", [WorkerKey(7, 1), WorkerKey(0, 0), WorkerKey(2**64 - 1, 2**32 - 1), WorkerKey(1, 300)]
)
@pytest.mark.parametrize("name", ["", "host:1", "h" * 20_000])
def test_the_worker_of_a_record_is_found_without_decoding_it(worker: WorkerKey, name: str) -> None:
    assert key_of_record(record_of(worker, name=name)) == worker


def test_bytes_that_are_no_record_are_nobodys() -> None:
    whole = record_of(WorkerKey(7, 1))
    strange = [b"", b"KVA", b"hello" * 9, b"KVA\x02" + whole[4:], whole[:12], whole[:12] + b"\xff"]
    strange += [
        whole[:12] + b"\x0a\xff\xff\xff\xff\xff\xff\xff",
        whole[:12] + b"\x0a\x04\x0a\x02\x09\x01",
    ]
    assert [key_of_record(each) for each in strange] == [None] * len(strange)
