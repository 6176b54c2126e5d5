"""Decodes the epochs in an indexer's status from protobuf."""

from google.protobuf.message import DecodeError

from kvatlas_events import WorkerKey
from kvatlas_publisher.state.state_dir import EPOCH_MAX, CellWorker
from kvatlas_wire.v1 import indexer_pb2

GET_STATUS = "/kvatlas.v1.Indexer/GetStatus"


def encode_get_status() -> bytes:
    """Return a GetStatusRequest."""
    return indexer_pb2.GetStatusRequest().SerializeToString()


def decode_epochs(data: bytes) -> dict[CellWorker, int]:
    """Return the epoch that the indexer follows, for every worker of its cell.

    Epochs above `EPOCH_MAX` are left out: no clock gives them.

    Raises:
        ValueError: it is not a GetStatusResponse.
    """
    try:
        status = indexer_pb2.GetStatusResponse.FromString(data)
    except DecodeError as error:
        raise ValueError(str(error)) from None
    return {
        CellWorker(status.cell, WorkerKey(info.worker.worker_id, info.worker.dp_rank)): info.epoch
        for info in (worker.info for worker in status.workers)
        if info.epoch <= EPOCH_MAX
    }
