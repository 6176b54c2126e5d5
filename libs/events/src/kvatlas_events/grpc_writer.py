"""The direct transport: sends a publisher's records to one indexer replica.

`Ingest` is one long stream: each request carries records and gets one response, in order. Appends of
several tasks share it; each waits for the responses to its own requests. When the stream ends, every
append that waits fails, and the next append opens another stream. The stream is native: it connects,
cuts requests and collects responses outside the event loop, which is woken once per append.

There is no log behind it, so a restarted receiver may lack what it acknowledged. Each response says
how far the receiver is with each worker. If that is less than was sent, it needs a snapshot.
"""

from collections.abc import Sequence
from functools import partial

import grpc

from kvatlas_events.log import Appended, Fenced, LogUnavailable, RecordsRejected
from kvatlas_native import ChannelError, IngestResponse, IngestStream, check_address, progress
from kvatlas_native.completions import Completions
from kvatlas_wire import WorkerKey

_ANSWER_S = 10.0
_CODES: dict[int, grpc.StatusCode] = {code.value[0]: code for code in grpc.StatusCode}
_REFUSALS = frozenset(
    {
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.UNAUTHENTICATED,
    }
)
_CLOSED = (grpc.StatusCode.CANCELLED.value[0], "the stream was ended on this side")


class GrpcWriter:
    """A `LogWriter` to the replica at `address` (host:port).

    Raises:
        ValueError: `address` is not host:port.
    """

    def __init__(self, address: str, *, answer_s: float = _ANSWER_S) -> None:
        check_address(address)  # here, because a stream would connect at once
        self._address = address
        self._answer_s = answer_s
        self._completions: Completions[IngestResponse] | None = None
        self._stream: IngestStream | None = None

    @property
    def name(self) -> str:
        """See `LogWriter`."""
        return f"grpc://{self._address}"

    async def append(self, records: Sequence[bytes]) -> Appended:
        """See `LogWriter`."""
        if self._completions is None:
            self._completions = Completions()
        stream = self._open_stream()
        try:
            answer = await self._completions.result_of(partial(stream.append, records))
        except ChannelError as error:
            raise self._as_log_error(error) from error
        return self._appended(records, answer)

    async def close(self) -> None:
        """See `LogWriter`."""
        if self._stream is not None:
            self._stream.close()
        if self._completions is not None:
            self._completions.close(ChannelError(*_CLOSED))
            self._completions = None

    def _open_stream(self) -> IngestStream:
        if self._stream is None or self._stream.is_over:
            self._stream = IngestStream(self._address, self._answer_s)
        return self._stream

    def _as_log_error(self, error: ChannelError) -> LogUnavailable | RecordsRejected:
        number, details = error.args
        code = _CODES.get(number, grpc.StatusCode.UNKNOWN)
        if code in _REFUSALS:
            return RecordsRejected(f"{self.name} rejects the records: {details}")
        if code is grpc.StatusCode.UNIMPLEMENTED:
            return LogUnavailable(f"{self.name} answers, but takes no records: {details}")
        return LogUnavailable(f"{self.name} cannot be reached: {code.name}: {details}")

    def _appended(self, records: Sequence[bytes], answer: IngestResponse) -> Appended:
        if answer.rejected:
            why = answer.first_rejection or "no reason given"
            raise RecordsRejected(
                f"{self.name} rejects {answer.rejected} of {len(records)} records: {why}"
            )
        # If several requests had records of a worker, its last position counts.
        positions = {
            (worker_id, dp_rank): (epoch, last_event_id, whole)
            for worker_id, dp_rank, epoch, last_event_id, whole in answer.positions
        }
        lacking = {WorkerKey(*worker) for worker, (_, _, whole) in positions.items() if not whole}
        # A worker's records are in order, so the last one says how far the receiver should be.
        sent = progress(records[-1]) if records and positions else None
        if sent is not None:
            worker_id, dp_rank, sent_epoch, sent_event_id = sent
            if (worker_id, dp_rank) in positions:
                worker = WorkerKey(worker_id, dp_rank)
                epoch, last_event_id, _ = positions[worker_id, dp_rank]
                if epoch > sent_epoch:
                    raise Fenced(self.name, worker, sent_epoch, epoch)
                if (epoch, last_event_id) < (sent_epoch, sent_event_id):
                    lacking.add(worker)
        return Appended(needs_snapshot=frozenset(lacking))
