"""The engines' side, in a process of its own: sockets that send what was made before.

Everything is encoded before the first message goes out, so that the machine's cores are the
publisher's while it is measured. It says on stdout where its sockets are, waits until each has a
subscriber, and begins when it is told to on the control socket; the answer says when the first
message went, on the clock that all processes share, and what to ask for.
"""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from typing import cast

import zmq

from kvatlas_hashing import chunk_hashes
from kvatlas_loadtest.bench.engine_events.traffic import BLOCK_SIZE, Requests, Shape

Messages = Sequence[Sequence[bytes]]
"""By engine, in order."""


def main() -> None:
    """Serve one run."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--engines", type=int, required=True)
    parser.add_argument("--messages", type=int, required=True, help="of each engine")
    parser.add_argument("--blocks-an-event", type=int, required=True)
    parser.add_argument("--events-a-message", type=int, required=True)
    parser.add_argument("--blocks-s", type=float, default=0.0, help="of each engine; 0: at once")
    words = parser.parse_args()
    shape = Shape(words.blocks_an_event, words.events_a_message)
    made = [Requests(shape, seed) for seed in range(words.engines)]
    messages = [list(requests.messages(words.messages)) for requests in made]
    prompts = [chunk_hashes(requests.last_prompt, BLOCK_SIZE).tolist() for requests in made]
    pause_s = shape.blocks_a_message / words.blocks_s if words.blocks_s else 0.0
    context = zmq.Context()
    try:
        _serve(context, messages, prompts, pause_s)
    finally:
        context.destroy(linger=0)


def _serve(
    context: "zmq.Context[zmq.Socket[bytes]]",
    messages: Messages,
    prompts: list[list[int]],
    pause_s: float,
) -> None:
    sockets = [_bound(context, zmq.XPUB) for _ in messages]
    control = _bound(context, zmq.REP)
    facts = {"ready": True, "events": [_address(s) for s in sockets], "control": _address(control)}
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()
    for socket in sockets:
        socket.recv()  # a subscription
    control.recv()
    control.send(json.dumps({"first_s": time.monotonic(), "prompts": prompts}).encode())
    _send(sockets, messages, pause_s)
    control.recv()  # the sockets' queues live as long as the run
    control.send(b"{}")


def _send(sockets: Sequence["zmq.Socket[bytes]"], messages: Messages, pause_s: float) -> None:
    """All engines in turn, message by message."""
    began_s = time.monotonic()
    for step, together in enumerate(zip(*messages, strict=True)):
        if pause_s:
            time.sleep(max(0.0, began_s + step * pause_s - time.monotonic()))
        seq = step.to_bytes(8, "big")
        for socket, payload in zip(sockets, together, strict=True):
            socket.send_multipart([b"kv-events", seq, payload])


def _bound(context: "zmq.Context[zmq.Socket[bytes]]", kind: int) -> "zmq.Socket[bytes]":
    socket = context.socket(kind)
    socket.setsockopt(zmq.SNDHWM, 0)  # nothing is lost: what is measured is all of it
    socket.bind("tcp://127.0.0.1:*")
    return socket


def _address(socket: "zmq.Socket[bytes]") -> str:
    return cast("bytes", socket.getsockopt(zmq.LAST_ENDPOINT)).rstrip(b"\0").decode()


if __name__ == "__main__":
    main()
