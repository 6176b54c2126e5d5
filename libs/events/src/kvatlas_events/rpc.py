"""The one call that the direct transport makes, `Indexer.Ingest`, in plain values."""

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import grpc
from grpc import aio

from kvatlas_events.model import Worker
from kvatlas_wire.v1 import indexer_pb2 as pb

_INGEST = "/kvatlas.v1.Indexer/Ingest"
_RECORDS_TAG = b"\x0a"
"""Of `IngestRequest.records`: field 1, length-delimited."""


@dataclass(frozen=True, slots=True)
class Position:
    """How far the receiver is with a worker."""

    worker: Worker
    epoch: int
    last_event_id: int
    whole: bool
    """False: only a snapshot helps."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What the receiver says to one request."""

    rejected: int
    first_rejection: str
    positions: tuple[Position, ...]
    """Of the workers that the request spoke of."""


class StreamOver(Exception):  # noqa: N818 - named for what happened
    """The stream is over; `code` is None where nobody said why."""

    def __init__(self, code: grpc.StatusCode | None, details: str) -> None:
        super().__init__(details)
        self.code = code
        self.details = details


class IngestStream:
    """One `Ingest` call: requests out, their responses to whoever waits, in order.

    The call is touched by the stream's own two tasks alone: grpc ends a call when a task that
    waits on it is cancelled, and one append's end must not be another's.
    """

    def __init__(self, channel: aio.Channel) -> None:
        self._call = channel.stream_stream(
            _INGEST,
            request_serializer=_encode,
            response_deserializer=pb.IngestResponse.FromString,
        )()
        self._over: StreamOver | None = None
        self._outgoing: asyncio.Queue[Sequence[bytes]] = asyncio.Queue()
        self._waiting: deque[asyncio.Future[pb.IngestResponse]] = deque()
        self._tasks = (
            asyncio.create_task(self._write(), name="kvatlas ingest requests"),
            asyncio.create_task(self._read(), name="kvatlas ingest responses"),
        )

    @property
    def is_over(self) -> bool:
        """Whether `send` can only fail."""
        return self._over is not None

    async def send(self, requests: Sequence[Sequence[bytes]]) -> list[Answer]:
        """Send requests of some records each, together, and return the answer to each.

        Raises:
            StreamOver: it ended before all of them were answered.
        """
        if self._over is not None:
            raise self._over
        answers = [asyncio.get_running_loop().create_future() for _ in requests]
        self._waiting.extend(answers)
        for records in requests:
            self._outgoing.put_nowait(records)
        return [_decode(response) for response in await asyncio.gather(*answers)]

    def abandon(self) -> None:
        """End the stream; everybody who waits is told."""
        self._end(StreamOver(None, "the stream was ended on this side"))

    async def ended(self) -> None:
        """Wait until nothing of the stream runs any more."""
        await asyncio.wait(self._tasks)

    async def _write(self) -> None:
        try:
            while True:
                await self._call.write(await self._outgoing.get())
        except (aio.AioRpcError, asyncio.InvalidStateError):
            return  # the call has ended; the reading task knows why and tells

    async def _read(self) -> None:
        over = StreamOver(None, "the reading task was cancelled")
        try:
            while isinstance(response := await self._call.read(), pb.IngestResponse):
                if not self._waiting:
                    over = StreamOver(None, "a response to no request")
                    break
                answer = self._waiting.popleft()
                if not answer.done():  # else its append was cancelled
                    answer.set_result(response)
            else:
                over = StreamOver(None, "the stream was ended on the other side")
        except aio.AioRpcError as error:
            over = StreamOver(error.code(), error.details() or "no details")
        finally:
            self._end(over)

    def _end(self, over: StreamOver) -> None:
        if self._over is not None:
            return
        self._over = over
        self._call.cancel()
        self._tasks[0].cancel()
        for answer in self._waiting:
            if not answer.done():
                answer.set_exception(over)
        self._waiting.clear()


def _encode(records: Sequence[bytes]) -> bytes:
    """Return an encoded `IngestRequest`: each record is copied once, a message would do so twice."""
    parts: list[bytes] = []
    for record in records:
        parts += (_RECORDS_TAG, _varint(len(record)), record)
    return b"".join(parts)


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value >= 0x80:  # noqa: PLR2004 - seven bits a byte, the eighth says that more follow
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _decode(response: pb.IngestResponse) -> Answer:
    return Answer(
        rejected=response.rejected,
        first_rejection=response.first_rejection,
        positions=tuple(
            Position(
                worker=Worker(each.worker.worker_id, each.worker.dp_rank),
                epoch=each.epoch,
                last_event_id=each.last_event_id,
                whole=each.whole,
            )
            for each in response.positions
        ),
    )
