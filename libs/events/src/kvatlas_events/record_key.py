"""Reads the worker's key from a record without decoding it, to choose a shard or partition.

A record is 12 bytes of frame and a `Batch` (`protos/kvatlas/v1/events.proto`). The header is the
batch's first field, and the worker is the header's first field:

    "KVA" 1, checksum │ 0A length │ 0A length │ 09 worker_id, 8 bytes │ 10 dp_rank, varint │ …
                      │ header    │ worker    │ unless it is 0        │ unless it is 0
"""

from functools import lru_cache

from kvatlas_wire import WorkerKey

_FRAME = b"KVA\x01"
_FRAME_LEN = 12
_MESSAGE = 0x0A  # field 1, length-delimited
_WORKER_ID = 0x09  # field 1, eight bytes
_WORKER_ID_LEN = 8
_DP_RANK = 0x10  # field 2, a varint
_VARINT_LEN_MAX = 5  # of 32 bits
_MORE = 0x80


def key_of_record(record: bytes) -> WorkerKey | None:
    """Return the key of the record's worker; None: these bytes are not a record."""
    if not record.startswith(_FRAME):
        return None
    header = _message(record, _FRAME_LEN)
    worker = None if header is None else _message(record, header[0])
    return None if worker is None else _worker(record[worker[0] : worker[1]])


@lru_cache(maxsize=65_536)
def _worker(encoded: bytes) -> WorkerKey | None:
    worker_id, dp_rank, at = 0, 0, 0
    if encoded.startswith(bytes([_WORKER_ID])):
        at = 1 + _WORKER_ID_LEN
        worker_id = int.from_bytes(encoded[1:at], "little")
    if encoded[at : at + 1] == bytes([_DP_RANK]):
        found = _varint(encoded, at + 1)
        if found is None:
            return None
        dp_rank, at = found
    return WorkerKey(worker_id, dp_rank) if at <= len(encoded) else None


def _message(data: bytes, at: int) -> tuple[int, int] | None:
    """Return begin and end of the content of the message-valued field 1 at `at`."""
    if at >= len(data) or data[at] != _MESSAGE:
        return None
    found = _varint(data, at + 1)
    return None if found is None else (found[1], found[1] + found[0])


def _varint(data: bytes, at: int) -> tuple[int, int] | None:
    """Return the number at `at` and its end; None: it does not end."""
    number, shift = 0, 0
    for i in range(at, min(at + _VARINT_LEN_MAX, len(data))):
        number |= (data[i] & ~_MORE) << shift
        shift += 7
        if not data[i] & _MORE:
            return number, i + 1
    return None
