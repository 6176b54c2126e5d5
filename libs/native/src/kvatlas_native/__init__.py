"""The native extension of kvatlas; the stub `_native.pyi` is its documentation."""

from kvatlas_native._native import (
    Applied,
    Cell,
    CellServer,
    Channel,
    ChannelError,
    Inbox,
    Lags,
    Outbox,
    Restore,
    Restored,
    RestoreRefused,
    Saved,
    WorkerNeed,
    chunk_hashes,
    sequence_hashes,
)

__all__ = [
    "Applied",
    "Cell",
    "CellServer",
    "Channel",
    "ChannelError",
    "Inbox",
    "Lags",
    "Outbox",
    "Restore",
    "RestoreRefused",
    "Restored",
    "Saved",
    "WorkerNeed",
    "chunk_hashes",
    "sequence_hashes",
]
