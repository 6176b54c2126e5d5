"""Keys and fields of a cell's log in Redis, and the shard of each worker.

    kvatlas:{CELL}:log:0      kvatlas:{CELL}:identity          shard 0, in every log
    kvatlas:{CELL:N}:log:N    kvatlas:{CELL:N}:identity:N      shard N, if there are several
    kvatlas:{CELL}:claim:W/R  kvatlas:{CELL:N}:claim:N:W/R     claim of a worker W/R of that shard

The braces are part of the keys: a cluster hashes what they enclose, the *tag*. Tags that differ in
one digit by 1, 2 and 3 lie in different quarters of the slots, because CRC-16 is linear and these
bits of the digit move a slot by quarters. So any five shards in a row touch each of three equal
nodes.
"""

import zlib
from functools import lru_cache

from kvatlas_events.record_key import key_of_record
from kvatlas_wire import WorkerKey

RECORD_FIELD = b"r"
"""Field of a stream's entry that holds a record."""
PROBE_FIELD = b"p"
"""Field of an entry that holds a prober's mark instead."""


def shard_of(record: bytes, shards: int) -> int:
    """Return the shard of a record; it depends on the worker only, in every release.

    Bytes that are not a record go to shard 0.
    """
    if shards == 1:
        return 0
    worker = key_of_record(record)
    return 0 if worker is None else shard_of_worker(worker, shards)


@lru_cache(maxsize=65_536)
def shard_of_worker(worker: WorkerKey, shards: int) -> int:
    """Return the shard of a worker's records."""
    return zlib.crc32(str(worker).encode()) % shards


def stream_key(cell: str, shard: int) -> str:
    """Return the key of a shard's stream."""
    return f"kvatlas:{{{_tag(cell, shard)}}}:log:{shard}"


def identity_key(cell: str, shard: int) -> str:
    """Return the key of the identity beside a shard's stream, in the same slot."""
    return f"kvatlas:{{{_tag(cell, shard)}}}:identity" + (f":{shard}" if shard else "")


def claim_key(cell: str, shard: int, worker: WorkerKey) -> str:
    """Return the key of a worker's claim, in the slot of the shard's stream."""
    number = f"{shard}:" if shard else ""  # {CELL:1} may also be another cell's name
    return f"kvatlas:{{{_tag(cell, shard)}}}:claim:{number}{worker}"


def _tag(cell: str, shard: int) -> str:
    return f"{cell}:{shard}" if shard else cell
