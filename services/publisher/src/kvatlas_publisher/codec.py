"""What an indexer's status says of epochs: protobuf to plain values."""

from google.protobuf.message import DecodeError

from kvatlas_events import Worker
from kvatlas_publisher.state_dir import EPOCH_MAX, Owner
from kvatlas_wire.v1 import indexer_pb2

GET_STATUS = "/kvatlas.v1.Indexer/GetStatus"


def encode_get_status() -> bytes:
    """Return a GetStatusRequest."""
    return indexer_pb2.GetStatusRequest().SerializeToString()


def decode_epochs(data: bytes) -> dict[Owner, int]:
    """Return the epoch that the indexer follows, of every worker of its cell.

    An epoch above `EPOCH_MAX` is none that a clock gave, and is left out.

    Raises:
        ValueError: that is no GetStatusResponse.
    """
    try:
        status = indexer_pb2.GetStatusResponse.FromString(data)
    except DecodeError as error:
        raise ValueError(str(error)) from None
    return {
        Owner(status.cell, Worker(info.worker.worker_id, info.worker.dp_rank)): info.epoch
        for info in (worker.info for worker in status.workers)
        if info.epoch <= EPOCH_MAX
    }
