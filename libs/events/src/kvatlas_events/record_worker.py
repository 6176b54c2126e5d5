"""Whose record it is, without decoding all of it: a transport that spreads workers needs no more.

A record is 12 bytes of frame and a `Batch` (`protos/kvatlas/v1/events.proto`). The header is the
batch's first field, and the worker the header's first:

    "KVA" 1, checksum │ 0A length │ 0A length │ 09 worker_id, 8 bytes │ 10 dp_rank, varint │ …
                      │ header    │ worker    │ unless it is 0        │ unless it is 0
"""

from functools import lru_cache

from kvatlas_events.model import Worker

_FRAME = b"KVA\x01"
_FRAME_LEN = 12
_MESSAGE = 0x0A  # field 1, length-delimited
_WORKER_ID = 0x09  # field 1, eight bytes
_WORKER_ID_LEN = 8
_DP_RANK = 0x10  # field 2, a varint
_VARINT_LEN_MAX = 5  # of 32 bits
_MORE = 0x80


def worker_of_record(record: bytes) -> Worker | None:
    """Return the worker that `record` speaks of; None: these bytes are no record of ours."""
    if not record.startswith(_FRAME):
        return None
    header = _message(record, _FRAME_LEN)
    worker = None if header is None else _message(record, header[0])
    return None if worker is None else _worker(record[worker[0] : worker[1]])


@lru_cache(maxsize=65_536)
def _worker(encoded: bytes) -> Worker | None:
    worker_id, dp_rank, at = 0, 0, 0
    if encoded.startswith(bytes([_WORKER_ID])):
        at = 1 + _WORKER_ID_LEN
        worker_id = int.from_bytes(encoded[1:at], "little")
    if encoded[at : at + 1] == bytes([_DP_RANK]):
        found = _varint(encoded, at + 1)
        if found is None:
            return None
        dp_rank, at = found
    return Worker(worker_id, dp_rank) if at <= len(encoded) else None


def _message(data: bytes, at: int) -> tuple[int, int] | None:
    """Return where the content of the message-valued field 1 at `at` begins and ends."""
    if at >= len(data) or data[at] != _MESSAGE:
        return None
    found = _varint(data, at + 1)
    return None if found is None else (found[1], found[1] + found[0])


def _varint(data: bytes, at: int) -> tuple[int, int] | None:
    """Return the number at `at` and where it ends; None: it does not end."""
    number, shift = 0, 0
    for place in range(at, min(at + _VARINT_LEN_MAX, len(data))):
        number |= (data[place] & ~_MORE) << shift
        shift += 7
        if not data[place] & _MORE:
            return number, place + 1
    return None
