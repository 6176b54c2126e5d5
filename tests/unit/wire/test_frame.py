"""A record is told from anything else; the Rust crate `kvatlas-wire` has the same tests."""

import pytest

from kvatlas_wire import FrameError, open_record, seal_record


@pytest.mark.parametrize("payload", [b"", b"batch", bytes(1000)])
def test_a_sealed_payload_opens(payload: bytes) -> None:
    assert open_record(seal_record(payload)) == payload


def test_the_frame_is_the_documented_one() -> None:
    # XXH3-64 of nothing, seed 0, is 2d06800538d394c2.
    assert seal_record(b"") == b"KVA\x01" + bytes.fromhex("c294d3380580062d")


def test_every_flipped_bit_is_noticed() -> None:
    record = seal_record(b"some payload")
    for bit in range(len(record) * 8):
        flipped = bytearray(record)
        flipped[bit // 8] ^= 1 << (bit % 8)
        with pytest.raises(FrameError):
            open_record(bytes(flipped))


def test_every_truncation_is_noticed() -> None:
    record = seal_record(b"some payload")
    for length in range(len(record)):
        with pytest.raises(FrameError):
            open_record(record[:length])


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (b"hello, world", "not a kvatlas record"),
        (b"KVA\x02" + bytes(8), "unknown schema version 2"),
        (b"KVA\x01" + bytes(8), "checksum"),
    ],
)
def test_the_errors_are_told_apart(record: bytes, message: str) -> None:
    with pytest.raises(FrameError, match=message):
        open_record(record)
