"""The engines, in a process of its own: sockets that send messages encoded beforehand.

All messages are encoded and framed before the first one is sent, so that the machine's cores are
free for the publisher. The process prints the addresses of its sockets, waits until each has a
subscriber, and starts on a message on the control socket. The answer has the time of the first
message, on the clock that all processes share, and the prompts to look up.
"""

import argparse
import json
import selectors
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import cast

import zmq

from kvatlas_hashing import chunk_hashes
from kvatlas_loadtest.bench.cell import BLOCK_SIZE
from kvatlas_loadtest.bench.engine_events import zmtp
from kvatlas_loadtest.bench.engine_events.traffic import Requests, Shape

Send = Callable[[Sequence[socket.socket]], None]
"""Sends all messages, over one connection per engine."""
_BURST_BYTES = 8 << 10
"""libzmq collects this many bytes before it writes."""


def main() -> None:
    """Serve one run."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--engines", type=int, required=True)
    parser.add_argument("--messages", type=int, required=True, help="messages of each engine")
    parser.add_argument("--blocks-an-event", type=int, required=True)
    parser.add_argument("--events-a-message", type=int, required=True)
    parser.add_argument(
        "--blocks-s", type=float, default=0.0, help="blocks/s of each engine; 0: no limit"
    )
    words = parser.parse_args()
    shape = Shape(words.blocks_an_event, words.events_a_message)
    made = [Requests(shape, seed) for seed in range(words.engines)]
    messages = [list(_framed(requests.messages(words.messages))) for requests in made]
    prompts = [chunk_hashes(requests.last_prompt, BLOCK_SIZE).tolist() for requests in made]
    pause_s = shape.blocks_a_message / words.blocks_s if words.blocks_s else 0.0
    send: Send
    if pause_s:
        send = partial(_send_paced, messages=messages, pause_s=pause_s)
    else:
        send = partial(_send_at_once, tapes=[b"".join(own) for own in messages])
    context = zmq.Context()
    try:
        _serve(context, len(made), prompts, send)
    finally:
        context.destroy(linger=0)


def _framed(payloads: Iterator[bytes]) -> Iterator[bytes]:
    for seq, payload in enumerate(payloads):
        yield zmtp.message([b"kv-events", seq.to_bytes(8, "big"), payload])


def _serve(
    context: "zmq.Context[zmq.Socket[bytes]]", engines: int, prompts: list[list[int]], send: Send
) -> None:
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(engines)]
    control = context.socket(zmq.REP)
    control.bind("tcp://127.0.0.1:*")
    address = cast("bytes", control.getsockopt(zmq.LAST_ENDPOINT)).rstrip(b"\0").decode()
    events = [f"tcp://127.0.0.1:{listener.getsockname()[1]}" for listener in listeners]
    facts = {"ready": True, "events": events, "control": address}
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()
    connections = [zmtp.await_subscriber(listener) for listener in listeners]
    control.recv()
    control.send(json.dumps({"first_s": time.monotonic(), "prompts": prompts}).encode())
    send(connections)
    control.recv()  # keeps the connections open until the end of the run
    control.send(b"{}")


def _send_paced(
    connections: Sequence[socket.socket], *, messages: Sequence[Sequence[bytes]], pause_s: float
) -> None:
    """Send one message of each engine in turn, at a fixed rate."""
    began_s = time.monotonic()
    for step, together in enumerate(zip(*messages, strict=True)):
        time.sleep(max(0.0, began_s + step * pause_s - time.monotonic()))
        for connection, message in zip(connections, together, strict=True):
            connection.sendall(message)


def _send_at_once(connections: Sequence[socket.socket], *, tapes: Sequence[bytes]) -> None:
    """Send a burst of each engine in turn, whenever its socket has room."""
    with selectors.DefaultSelector() as selector:
        for connection, own in zip(connections, tapes, strict=True):
            connection.setblocking(False)
            selector.register(connection, selectors.EVENT_WRITE, memoryview(own))
        while selector.get_map():
            for key, _ in selector.select():
                connection = cast("socket.socket", key.fileobj)
                left = key.data[connection.send(key.data[:_BURST_BYTES]) :]
                if left:
                    selector.modify(connection, selectors.EVENT_WRITE, left)
                else:
                    selector.unregister(connection)


if __name__ == "__main__":
    main()
