"""Headers of records whose values do not matter to a test."""

from kvatlas_events import Header, WorkerKey


def header(
    worker: WorkerKey = WorkerKey(7, 1),  # noqa: B008 - immutable
    *,
    epoch: int = 5,
    block_size: int = 16,
    publisher: str = "host:1",
) -> Header:
    return Header(
        worker=worker,
        epoch=epoch,
        instance_id=9,
        cell="test",
        model="model",
        block_size=block_size,
        hash_contract="contract",
        publisher=publisher,
    )
