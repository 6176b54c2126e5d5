"""Makes the native cell and its gRPC server from the settings."""

import asyncio
import os
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from importlib.metadata import version

from kvatlas_chassis import FatalError, HostPort
from kvatlas_hashing import CONTRACT
from kvatlas_indexer.settings import IndexerSettings
from kvatlas_native import Cell, CellServer

_GRACE_FOR_CALLS = 0.7
"""Share of the grace period for running calls; the rest is for everything else."""


def build_cell(settings: IndexerSettings) -> Cell:
    """Make the cell, empty and not ready.

    Raises:
        FatalError: the system does not have the memory to keep.
    """
    cell = Cell(
        cell=settings.cell,
        model=settings.model,
        block_size=settings.block_size,
        hash_contract=CONTRACT,
        replica_id=settings.replica_id or f"{socket.gethostname()}-{os.getpid()}",
        version=version("kvatlas-indexer"),
        lease_ms=settings.lease_ms,
        hold_back_batches_max=settings.hold_back_batches_max,
        hold_back_ms=settings.hold_back_ms,
        recover_ms=settings.recover_ms,
        memory_bytes_max=settings.memory_bytes_max,
    )
    if not cell.keep_memory(settings.memory_bytes_kept):
        raise FatalError(
            f"memory_bytes_kept: the system does not give {settings.memory_bytes_kept} bytes"
        )
    return cell


@asynccontextmanager
async def grpc_server(cell: Cell, settings: IndexerSettings) -> AsyncGenerator[HostPort, None]:
    """Serve gRPC on native threads; at the exit running calls get most of the grace period.

    Raises:
        FatalError: the address cannot be used.
    """
    listen = settings.listen
    try:
        server = CellServer(cell, listen.host, listen.port, threads=settings.threads)
    except OSError as error:
        reason = error.strerror or str(error)
        raise FatalError(f"cannot listen on --listen {listen}: {reason}") from None
    try:
        yield HostPort(*server.address)
    finally:
        await asyncio.to_thread(server.stop, settings.grace_s * _GRACE_FOR_CALLS)
