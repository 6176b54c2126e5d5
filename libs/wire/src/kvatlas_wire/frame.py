"""The frame of a record of the event log; see the diagram in `protos/kvatlas/v1/events.proto`.

A log may contain foreign messages, and truncated or damaged records. The frame detects them before a
batch is decoded; protobuf alone would accept most of them.
"""

import xxhash

_MAGIC = b"KVA"
_VERSION = 1
_FRAME_LEN = 12


class FrameError(ValueError):
    """The bytes are not a record, or a damaged one."""


def seal_record(payload: bytes) -> bytes:
    """Return the record that carries `payload`, an encoded `Batch`."""
    checksum = xxhash.xxh3_64_intdigest(payload)
    return _MAGIC + bytes([_VERSION]) + checksum.to_bytes(8, "little") + payload


def open_record(record: bytes) -> bytes:
    """Return the payload of `record`.

    Raises:
        FrameError: a foreign message, an unknown schema version, or a wrong checksum.
    """
    if len(record) < len(_MAGIC) + 1 or not record.startswith(_MAGIC):
        raise FrameError("not a kvatlas record")
    version = record[3]
    if version != _VERSION:
        raise FrameError(f"record of unknown schema version {version}")
    payload = record[_FRAME_LEN:]
    if record[4:_FRAME_LEN] != xxhash.xxh3_64_intdigest(payload).to_bytes(8, "little"):
        raise FrameError("corrupt record: its checksum does not match")
    return payload
