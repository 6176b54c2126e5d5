"""The direct transport: a publisher's records straight to one indexer replica.

`Ingest` is one long stream: a request of records out, one response to each back, in order. Appends
of several tasks share it; each waits for the responses to its own requests. When the stream ends,
for whatever reason, everybody who waits is told, and the next append opens another one. The stream
itself is native: connected, cut into requests and answered beside the event loop, which is woken
once for an append.

There is no log behind it, so the receiver may lack what was acknowledged in its earlier life. Its
responses say how far it is with each worker; less than was sent means that a snapshot is needed.
"""

from collections.abc import Sequence
from functools import partial

import grpc

from kvatlas_events.log import Appended, Fenced, LogUnavailable, RecordsRejected
from kvatlas_events.model import Worker
from kvatlas_native import Channel, ChannelError, Ingested, IngestStream, progress
from kvatlas_native.letterbox import Letterbox

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
        ValueError: `address` is none.
    """

    def __init__(self, address: str, *, answer_s: float = _ANSWER_S) -> None:
        Channel(address)  # asked only whether that is one: a stream would connect at once
        self._address = address
        self._answer_s = answer_s
        self._letterbox: Letterbox[Ingested] | None = None
        self._stream: IngestStream | None = None

    @property
    def name(self) -> str:
        """As of `LogWriter`."""
        return f"grpc://{self._address}"

    async def append(self, records: Sequence[bytes]) -> Appended:
        """As of `LogWriter`."""
        if self._letterbox is None:
            self._letterbox = Letterbox()
        stream = self._open_stream()
        try:
            answer = await self._letterbox.outcome(partial(stream.append, records))
        except ChannelError as error:
            raise self._in_words(error) from error
        return self._judge(records, answer)

    async def close(self) -> None:
        """As of `LogWriter`."""
        if self._stream is not None:
            self._stream.close()
        if self._letterbox is not None:
            self._letterbox.close(ChannelError(*_CLOSED))
            self._letterbox = None

    def _open_stream(self) -> IngestStream:
        if self._stream is None or self._stream.is_over:
            self._stream = IngestStream(self._address, self._answer_s)
        return self._stream

    def _in_words(self, error: ChannelError) -> LogUnavailable | RecordsRejected:
        number, details = error.args
        code = _CODES.get(number, grpc.StatusCode.UNKNOWN)
        if code in _REFUSALS:
            return RecordsRejected(f"{self.name} rejects the records: {details}")
        if code is grpc.StatusCode.UNIMPLEMENTED:
            return LogUnavailable(f"{self.name} answers, but takes no records: {details}")
        return LogUnavailable(f"{self.name} cannot be reached: {code.name}: {details}")

    def _judge(self, records: Sequence[bytes], answer: Ingested) -> Appended:
        if answer.rejected:
            why = answer.first_rejection or "it does not say why"
            raise RecordsRejected(
                f"{self.name} rejects {answer.rejected} of {len(records)} records: {why}"
            )
        # Of a worker that several requests spoke of, the last position counts.
        positions = {
            (worker_id, dp_rank): (epoch, last_event_id, whole)
            for worker_id, dp_rank, epoch, last_event_id, whole in answer.positions
        }
        lacking = {Worker(*worker) for worker, (_, _, whole) in positions.items() if not whole}
        # One worker's records come in its order, so the last one says where it should be by now.
        sent = progress(records[-1]) if records and positions else None
        if sent is not None:
            worker_id, dp_rank, sent_epoch, sent_event_id = sent
            if (worker_id, dp_rank) in positions:
                worker = Worker(worker_id, dp_rank)
                epoch, last_event_id, _ = positions[worker_id, dp_rank]
                if epoch > sent_epoch:
                    raise Fenced(self.name, worker, sent_epoch, epoch)
                if (epoch, last_event_id) < (sent_epoch, sent_event_id):
                    lacking.add(worker)
        return Appended(needs_snapshot=frozenset(lacking))
