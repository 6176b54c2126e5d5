"""The event sockets of one rank: PUB for the live stream, ROUTER for replay, as in vLLM >= 0.26.

A DEALER sends `["", start_seq]` and gets `["", topic, seq, payload]` for every kept message from
there on, then an END: seq 8 x ff with an empty payload. A request of another shape is ignored. The
last 10,000 messages are kept. The high-water marks are vLLM's: a slow reader loses messages, and
may lose the END.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import zmq
import zmq.asyncio

from kvatlas_chassis import FatalError, TaskSet
from kvatlas_mocker.events import CacheEvent, encode_payload, encode_seq
from kvatlas_mocker.faults import Faults

log = logging.getLogger(__name__)

KEPT_MESSAGES = 10_000
END_SEQ = b"\xff" * 8
_HIGH_WATER_MARK = 100_000
_REPLAY_CHUNK = 64
_REBIND_ATTEMPTS = 100
_REBIND_PAUSE_S = 0.02


@dataclass(frozen=True, slots=True)
class StreamAddress:
    """The endpoints of one rank's events and replay; None: there is no such socket."""

    events: str | None
    replay: str | None


class EventStream:
    """Publishes one rank's events, with sequence numbers from 0.

    Owns both sockets, and the task that answers replay requests. `publish` never blocks.
    """

    def __init__(
        self,
        context: zmq.asyncio.Context,
        tasks: TaskSet,
        *,
        topic: str,
        dp_rank: int,
        faults: Faults,
    ) -> None:
        self.seq = 0
        self.address = StreamAddress(None, None)
        self._context = context
        self._tasks = tasks
        self._topic = topic.encode()
        self._dp_rank = dp_rank
        self._faults = faults
        self._kept: deque[tuple[int, bytes]] = deque(maxlen=KEPT_MESSAGES)
        self._pub: zmq.Socket[bytes] | None = None
        self._router: zmq.asyncio.Socket | None = None
        self._replay: asyncio.Task[None] | None = None

    def bind(self, events: str, replay: str | None) -> None:
        """Bind both sockets; `address` then has the ports that were chosen for 0 and *.

        Raises:
            zmq.ZMQError: an address cannot be used; neither socket stays bound.
        """
        pub = zmq.Context(self._context).socket(zmq.PUB)
        pub.setsockopt(zmq.SNDHWM, _HIGH_WATER_MARK)
        router = None
        try:
            pub.bind(events)
            if replay is not None:
                router = self._context.socket(zmq.ROUTER)
                router.bind(replay)
        except zmq.ZMQError:
            pub.close(linger=0)
            if router is not None:
                router.close(linger=0)
            raise
        self._pub, self._router = pub, router
        self.address = StreamAddress(_endpoint(pub), _endpoint(router) if router else None)
        if router is not None:
            name = f"replay of rank {self._dp_rank}"
            self._replay = self._tasks.start(self._serve_replay(router), name=name)

    def publish(self, unix_s: float, events: Sequence[CacheEvent]) -> None:
        """Send one message; keep it for replay."""
        if self._pub is None:
            return
        seq = self.seq
        self.seq += 1
        if self._faults.take("hole_events"):
            return
        payload = encode_payload(unix_s, events, self._dp_rank)
        self._kept.append((seq, payload))
        if self._faults.take("drop_events"):
            return
        self._pub.send_multipart((self._topic, encode_seq(seq), payload), zmq.NOBLOCK)

    async def restart(self) -> None:
        """Start again at 0 on the same addresses, with no kept messages, as a restarted engine.

        Raises:
            FatalError: an address was taken in the meantime.
        """
        address = self.address
        self.close()
        self.seq = 0
        self._kept.clear()
        if address.events is None:
            return
        for _ in range(_REBIND_ATTEMPTS):  # ZMQ's I/O thread closes the old sockets a little later
            try:
                self.bind(address.events, address.replay)
            except zmq.ZMQError:
                await asyncio.sleep(_REBIND_PAUSE_S)
            else:
                return
        raise FatalError(f"cannot bind {address.events} again")

    def close(self) -> None:
        """Release both sockets."""
        if self._replay is not None:
            self._replay.cancel()
        if self._pub is not None:
            self._pub.close(linger=0)
        if self._router is not None:
            self._router.close(linger=0)
        self._pub = self._router = None

    async def _serve_replay(self, router: zmq.asyncio.Socket) -> None:
        while True:
            await self._answer(router, await router.recv_multipart())

    async def _answer(self, router: zmq.asyncio.Socket, frames: list[bytes]) -> None:
        if len(frames) != 3 or frames[1] != b"" or len(frames[2]) != 8:  # noqa: PLR2004 - the request's shape
            log.warning("ignored a replay request of %d frames", len(frames))
            return
        client = frames[0]
        start = int.from_bytes(frames[2], "big")
        kept = [message for message in self._kept if message[0] >= start]
        for count, (seq, payload) in enumerate(kept):
            if count % _REPLAY_CHUNK == 0:
                await asyncio.sleep(0)
            await _send(router, (client, b"", self._topic, encode_seq(seq), payload))
        await _send(router, (client, b"", self._topic, END_SEQ, b""))


def bind_streams(
    streams: Sequence[EventStream], *, events: str, replay: str | None, attempts: int = 50
) -> None:
    """Bind rank r's sockets to the base ports + r, as vLLM does.

    If the base port is free to choose (0 or *) and a port above it is taken, try another base.

    Raises:
        FatalError: an address cannot be used; the message names it.
    """
    free_base = _is_free(events) or (replay is not None and _is_free(replay))
    problem = ""
    for _ in range(attempts if free_base and len(streams) > 1 else 1):
        bound: list[EventStream] = []
        base = StreamAddress(events, replay)
        try:
            for rank, stream in enumerate(streams):
                base_events = base.events or events
                at = StreamAddress(
                    offset_port(base_events, rank), base.replay and offset_port(base.replay, rank)
                )
                problem = f"{at.events}" + (f" or {at.replay}" if at.replay else "")
                stream.bind(at.events or events, at.replay)
                bound.append(stream)
                base = streams[0].address
        except zmq.ZMQError as error:
            problem += f": {error.strerror}"
            for stream in bound:
                stream.close()
        else:
            return
    raise FatalError(f"cannot bind --events and --replay at {problem}")


def offset_port(endpoint: str, rank: int) -> str:
    """The endpoint of a rank: its port is the base port + rank."""
    if not rank:
        return endpoint
    head, _, port = endpoint.rpartition(":")
    return f"{head}:{int(port) + rank}"


async def _send(router: zmq.asyncio.Socket, frames: tuple[bytes, ...]) -> None:
    await router.send_multipart(frames)  # pyright: ignore[reportUnknownMemberType] - untyped in pyzmq


def _is_free(endpoint: str) -> bool:
    return endpoint.rpartition(":")[2] in ("0", "*")


def _endpoint(socket: "zmq.Socket[bytes] | zmq.asyncio.Socket") -> str:
    bound = socket.getsockopt(zmq.LAST_ENDPOINT)
    return bound.rstrip(b"\0").decode() if isinstance(bound, bytes) else str(bound)
