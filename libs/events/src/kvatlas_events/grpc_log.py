"""The direct transport: a publisher's records straight to one indexer replica.

`Ingest` is one long stream: a request of records out, one response to each back, in order. Appends
of several tasks share it; each waits for the responses to its own requests. When the stream ends,
for whatever reason, everybody who waits is told, and the next append opens another one.

There is no log behind it, so the receiver may lack what was acknowledged in its earlier life. Its
responses say how far it is with each worker; less than was sent means that a snapshot is needed.
"""

import asyncio
from collections.abc import Iterable, Sequence

import grpc
from grpc import aio

from kvatlas_events.codec import Progress, progress
from kvatlas_events.log import Appended, Fenced, LogUnavailable, RecordsRejected
from kvatlas_events.rpc import Answer, IngestStream, Position, StreamOver

_REQUEST_BYTES_MAX = 120 << 10
"""Of the records in one request, unless a single one is larger.

Below the size from which an allocator maps memory afresh for every buffer: the page faults of a
request of half a megabyte cost twenty times its copying. And a receiver applies the first requests
of an append while the later ones are on their way.
"""
_CONNECT_MS = 5_000
_ANSWER_S = 10.0
_REFUSALS = frozenset(
    {
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.UNAUTHENTICATED,
    }
)
_OPTIONS = (
    ("grpc.enable_http_proxy", 0),  # a proxy of the environment is for the world outside
    ("grpc.initial_reconnect_backoff_ms", 50),  # whoever delivers has a backoff of its own
    # Despite its name the time that one attempt to connect has, in which TCP and HTTP/2 go back and
    # forth twice. A refusal comes at once, and its pause is the backoff of the other two.
    ("grpc.min_reconnect_backoff_ms", _CONNECT_MS),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.keepalive_time_ms", 10_000),  # a partition shows, though nothing is sent
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.use_local_subchannel_pool", 1),
)


class GrpcWriter:
    """A `LogWriter` to the replica at `address` (host:port)."""

    def __init__(self, address: str, *, answer_s: float = _ANSWER_S) -> None:
        self._address = address
        self._answer_s = answer_s
        self._channel: aio.Channel | None = None
        self._stream: IngestStream | None = None

    @property
    def name(self) -> str:
        """As of `LogWriter`."""
        return f"grpc://{self._address}"

    async def append(self, records: Sequence[bytes]) -> Appended:
        """As of `LogWriter`."""
        requests = list(_parts(records))
        stream = self._open_stream()
        try:
            async with asyncio.timeout(self._answer_s):
                answers = await stream.send(requests)
        except TimeoutError as error:
            stream.abandon()
            why = f"{self.name} does not answer within {self._answer_s:g} s"
            raise LogUnavailable(why) from error
        except StreamOver as over:
            raise self._in_words(over) from over
        return self._judge(records, answers)

    async def close(self) -> None:
        """As of `LogWriter`."""
        if self._stream is not None:
            self._stream.abandon()
            await self._stream.ended()
        if self._channel is not None:
            await self._channel.close()

    def _open_stream(self) -> IngestStream:
        if self._stream is None or self._stream.is_over:
            if self._channel is None:
                self._channel = aio.insecure_channel(self._address, options=_OPTIONS)
            self._stream = IngestStream(self._channel)
        return self._stream

    def _in_words(self, over: StreamOver) -> LogUnavailable | RecordsRejected:
        if over.code in _REFUSALS:
            return RecordsRejected(f"{self.name} rejects the records: {over.details}")
        if over.code is grpc.StatusCode.UNIMPLEMENTED:
            return LogUnavailable(f"{self.name} answers, but takes no records: {over.details}")
        code = "" if over.code is None else f"{over.code.name}: "
        return LogUnavailable(f"{self.name} cannot be reached: {code}{over.details}")

    def _judge(self, records: Sequence[bytes], answers: Sequence[Answer]) -> Appended:
        for answer in answers:
            if answer.rejected:
                why = answer.first_rejection or "it does not say why"
                raise RecordsRejected(
                    f"{self.name} rejects {answer.rejected} of {len(records)} records: {why}"
                )
        positions = {each.worker: each for answer in answers for each in answer.positions}
        lacking = {worker for worker, position in positions.items() if not position.whole}
        # One worker's records come in its order, so the last one says where it should be by now.
        sent = progress(records[-1]) if records and positions else None
        if sent is not None and sent.worker in positions:
            position = positions[sent.worker]
            if position.epoch > sent.epoch:
                raise Fenced(self.name, sent.worker, sent.epoch, position.epoch)
            if _is_behind(position, sent):
                lacking.add(sent.worker)
        return Appended(needs_snapshot=frozenset(lacking))


def _is_behind(position: Position, sent: Progress) -> bool:
    return (position.epoch, position.last_event_id) < (sent.epoch, sent.last_event_id)


def _parts(records: Sequence[bytes]) -> Iterable[list[bytes]]:
    """Cut `records` into what fits a request; without records, one empty request asks."""
    part: list[bytes] = []
    part_bytes = 0
    for record in records:
        if part and part_bytes + len(record) > _REQUEST_BYTES_MAX:
            yield part
            part, part_bytes = [], 0
        part.append(record)
        part_bytes += len(record)
    yield part
