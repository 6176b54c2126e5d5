"""The format of a checkpoint's file: a mirror, and the engine message that it was taken after.

"kvcheckp" | header's length 4 | header, JSON | CRC-32 of the header 4 | the mirror's own bytes
"""

import json
import struct
import zlib
from dataclasses import asdict, dataclass
from typing import Any, cast

from kvatlas_engines.effects import ResumePoint
from kvatlas_hashing import CONTRACT
from kvatlas_publisher.state.state_dir import StateCorrupt

VERSION = 1
_MAGIC = b"kvcheckp"
_HEADER_BYTES_MAX = 64 << 10


@dataclass(frozen=True, slots=True)
class CheckpointTerms:
    """Settings that must be the same for a mirror to be of use after a restart."""

    cell: str
    worker: str
    engine: str
    model: str
    block_size: int
    hash_contract: str = CONTRACT


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A mirror's state after the message of the resume point."""

    terms: CheckpointTerms
    resume_point: ResumePoint
    state: bytes | memoryview


def encode_checkpoint(checkpoint: Checkpoint) -> tuple[bytes, bytes | memoryview]:
    """Return a file's content in two parts; the second is the mirror's own bytes."""
    resume_point = checkpoint.resume_point
    fields = {
        "version": VERSION,
        "terms": asdict(checkpoint.terms),
        "seq": resume_point.seq,
        "digest": resume_point.digest.hex(),
        "state_bytes": len(checkpoint.state),
    }
    header = json.dumps(fields).encode()
    length, checksum = (struct.pack("<I", number) for number in (len(header), zlib.crc32(header)))
    return b"".join((_MAGIC, length, header, checksum)), checkpoint.state


def decode_checkpoint(content: bytes) -> Checkpoint:
    """Return the checkpoint of a file's content. The mirror's bytes are not checked.

    Raises:
        StateCorrupt: it is damaged, or no checkpoint.
    """
    if content[:8] != _MAGIC or len(content) < 16:  # noqa: PLR2004 - magic, length, checksum
        raise StateCorrupt("it is not a checkpoint")
    (length,) = struct.unpack_from("<I", content, 8)
    end = 12 + length
    if length > _HEADER_BYTES_MAX or len(content) < end + 4:
        raise StateCorrupt("it ends early")
    header = content[12:end]
    if struct.unpack_from("<I", content, end) != (zlib.crc32(header),):
        raise StateCorrupt("its checksum is wrong")
    try:
        terms, resume_point, state_bytes = _decode_header(header)
    except StateCorrupt:
        raise
    except (ValueError, TypeError, LookupError, OverflowError, RecursionError):
        raise StateCorrupt("its header has other fields") from None
    state = content[end + 4 :]
    if not 0 <= resume_point.seq < 1 << 64 or len(state) != state_bytes:
        raise StateCorrupt("its length is wrong")
    return Checkpoint(terms, resume_point, state)


def _decode_header(header: bytes) -> tuple[CheckpointTerms, ResumePoint, int]:
    """Return terms, resume point, and the number of the mirror's own bytes."""
    fields = cast("dict[str, Any]", json.loads(header))
    if fields["version"] != VERSION:
        raise StateCorrupt(f"it is of version {fields['version']!r}, not {VERSION}")
    resume_point = ResumePoint(int(fields["seq"]), bytes.fromhex(fields["digest"]))
    return CheckpointTerms(**fields["terms"]), resume_point, int(fields["state_bytes"])
