"""kvatlas.v1 on the wire: shared types, generated code, the record frame, gRPC channels."""

from kvatlas_wire.fields import bytes_field
from kvatlas_wire.frame import FrameError, open_record, seal_record
from kvatlas_wire.types import Load, Tier, TierDigest, WorkerKey

__all__ = [
    "FrameError",
    "Load",
    "Tier",
    "TierDigest",
    "WorkerKey",
    "bytes_field",
    "open_record",
    "seal_record",
]
