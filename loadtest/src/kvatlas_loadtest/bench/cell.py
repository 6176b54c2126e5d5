"""The cell that the benchmarks run in: its settings, its indexer, and headers of its records."""

from kvatlas_events import Header, WorkerKey
from kvatlas_hashing import CONTRACT
from kvatlas_loadtest.supervisor import Command, kvatlas

CELL = MODEL = "bench"
BLOCK_SIZE = 16
ANY_PORT = "127.0.0.1:0"
TERMS = ("--cell", CELL, "--model", MODEL, "--block-size", str(BLOCK_SIZE))
"""Flags of the settings that are equal in the whole cell."""


def indexer_command(log: str, *flags: str, cores: frozenset[int] = frozenset()) -> Command:
    """The command of an indexer that reads `log`, on ports that the system picks."""
    words = ("--listen", ANY_PORT, "--admin", ANY_PORT, "--log", log, *TERMS, *flags)
    return kvatlas("indexer", "indexer", *words, cores=cores)


def record_header(worker_id: int, *, epoch: int, instance_id: int = 1) -> Header:
    """The header of a worker's records."""
    return Header(
        worker=WorkerKey(worker_id),
        epoch=epoch,
        instance_id=instance_id,
        cell=CELL,
        model=MODEL,
        block_size=BLOCK_SIZE,
        hash_contract=CONTRACT,
        publisher="kvatlas bench",
    )
