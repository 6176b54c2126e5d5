"""A live engine's side of the wire: real PUB and ROUTER sockets on loopback."""

import asyncio
import errno
import time
from collections import deque
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import zmq

END = b"\xff" * 8


def bind(listener: zmq.SyncSocket, address: str) -> None:
    """Bind, once the socket that was closed there has let go; ZMQ closes in the background."""
    while True:
        try:
            listener.bind(address)
        except zmq.ZMQError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            time.sleep(0.005)
        else:
            return


class WireEngine:
    """Speaks an engine's frames; replays from what it keeps, when told to by `serve_replays`."""

    def __init__(self, *, kept: int = 10_000, topic_in_replies: bool = True) -> None:
        self._context = zmq.Context()
        self._kept_max = kept
        self._topic_in_replies = topic_in_replies
        self.questions: list[int] = []
        self.loses_end = 0
        """So many answers will lack their END."""
        self._start("tcp://127.0.0.1:*", "tcp://127.0.0.1:*")

    def _start(self, events: str, replay: str) -> None:
        self._pub = self._context.socket(zmq.XPUB)  # XPUB, to see subscribers come
        self._pub.setsockopt(zmq.LINGER, 0)
        bind(self._pub, events)
        self._router = self._context.socket(zmq.ROUTER)
        self._router.setsockopt(zmq.LINGER, 0)
        bind(self._router, replay)
        self.events: str = self._pub.getsockopt_string(zmq.LAST_ENDPOINT)
        self.replay: str = self._router.getsockopt_string(zmq.LAST_ENDPOINT)
        self.next_seq = 0
        self._kept: deque[tuple[int, bytes]] = deque(maxlen=self._kept_max)

    def restart(self) -> None:
        """Die and come back on the same ports, counting from 0."""
        self._pub.close()
        self._router.close()
        self._start(self.events, self.replay)

    def stop(self) -> None:
        self._pub.close()
        self._router.close()

    def close(self) -> None:
        self._context.destroy(linger=0)

    async def subscribed(self) -> None:
        while True:
            self.answer_replays()
            try:
                self._pub.recv(zmq.NOBLOCK)
            except zmq.Again:
                await asyncio.sleep(0.002)
            else:
                return

    def send(self, *events: Any, dp_rank: int = 0, lost: bool = False) -> None:  # noqa: ANN401
        self.send_payload(msgspec.msgpack.encode([1.0, list(events), dp_rank]), lost=lost)

    def send_payload(self, payload: bytes, *, lost: bool = False) -> None:
        self._kept.append((self.next_seq, payload))
        if not lost:
            self._pub.send_multipart([b"kv-events", self.next_seq.to_bytes(8, "big"), payload])
        self.next_seq += 1

    def fail_to_encode(self) -> None:
        self.next_seq += 1

    def answer_replays(self) -> None:
        """Answer the questions that wait, as an engine does between two batches."""
        while not self._router.closed:
            try:
                client, empty, start = self._router.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            assert empty == b""
            first = int.from_bytes(start, "big")
            self.questions.append(first)
            topic = [b"kv-events"] if self._topic_in_replies else []
            for seq, payload in self._kept:
                if seq >= first:
                    frames = [client, b"", *topic, seq.to_bytes(8, "big"), payload]
                    self._router.send_multipart(frames)
            if self.loses_end:
                self.loses_end -= 1
                continue
            topic = [b""] if self._topic_in_replies else []
            self._router.send_multipart([client, b"", *topic, END, b""])

    async def until(self, done: Any) -> None:  # noqa: ANN401 - a condition
        """Answer replays until `done()` holds; the test's own time limit ends a hang."""
        while not done():
            self.answer_replays()
            await asyncio.sleep(0.002)


@pytest.fixture
def wire_engine() -> Iterator[WireEngine]:
    engine = WireEngine()
    yield engine
    engine.close()


@pytest.fixture
def old_wire_engine() -> Iterator[WireEngine]:
    engine = WireEngine(topic_in_replies=False)
    yield engine
    engine.close()
