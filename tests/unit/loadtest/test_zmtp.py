"""The benchmark's engines on the wire: what they frame, a socket of libzmq understands."""

import socket
from concurrent.futures import ThreadPoolExecutor

import pytest
import zmq

from kvatlas_loadtest.bench.engine_events import zmtp

_RECEIVE_MS = 10_000


def test_a_subscriber_of_libzmq_gets_every_message_whole() -> None:
    sizes = (0, 1, 255, 256, 70_000)
    messages = [[b"topic", bytes([size % 251]) * size, b"end"] for size in sizes]
    context = zmq.Context()
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as pool:
        accepted = pool.submit(zmtp.await_subscriber, listener)
        subscriber = context.socket(zmq.SUB)
        try:
            subscriber.setsockopt(zmq.RCVTIMEO, _RECEIVE_MS)
            subscriber.setsockopt(zmq.SUBSCRIBE, b"")
            subscriber.connect(f"tcp://127.0.0.1:{listener.getsockname()[1]}")
            with accepted.result(timeout=10) as connection:
                connection.sendall(b"".join(zmtp.message(parts) for parts in messages))
                received = [subscriber.recv_multipart() for _ in messages]
        finally:
            context.destroy(linger=0)
    assert received == messages


@pytest.mark.parametrize(
    ("said", "complaint"),
    [(b"GET / HTTP/1.1\r\n" + bytes(64), "not ZMTP"), (b"\xff", "went away")],
)
def test_a_peer_that_is_no_subscriber_is_refused(said: bytes, complaint: str) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()) as peer,
    ):
        peer.sendall(said)
        peer.shutdown(socket.SHUT_WR)
        with pytest.raises(ConnectionError, match=complaint):
            zmtp.await_subscriber(listener)
