"""Engines that answer at once: the other end of the frontend's benchmark, as one small process.

Run as `python -m kvatlas_loadtest.bench.instant_engines --engines N`. Each engine streams as many
events as the request's `max_tokens` says: the first at once, each later one `--interval-ms` after
the one before and in a packet of its own, as engines do.
"""

import argparse
import asyncio
import json
import re
from typing import cast

import uvloop

from kvatlas_chassis import announce_ready
from kvatlas_loadtest.bench.http import no_delay, request_end

_MAX_TOKENS = re.compile(rb'"max_tokens": ?(\d+)')
_STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n"
)
_END = b"0\r\n\r\n"


def _chunk(text: str) -> bytes:
    return f"{len(text):x}\r\n{text}\r\n".encode()


def _event(model: str, **fields: object) -> bytes:
    document = {"id": "cmpl-bench", "object": "text_completion", "created": 0, "model": model}
    return _chunk(f"data: {json.dumps(document | fields)}\n\n")


class _Answers:
    """All that an engine ever says, made once."""

    def __init__(self, model: str) -> None:
        choice = {"index": 0, "text": " word", "logprobs": None, "finish_reason": None}
        self.token = _event(model, choices=[choice])
        self.last = _event(model, choices=[choice | {"finish_reason": "length"}])
        self.done = _chunk("data: [DONE]\n\n") + _END
        models = {"object": "list", "data": [{"id": model, "object": "model"}]}
        self.models = _plain(json.dumps(models), "application/json")
        self.metrics = _plain(
            'vllm:num_requests_running{model_name="bench"} 0\n'
            'vllm:num_requests_waiting{model_name="bench"} 0\n',
            "text/plain",
        )


def _plain(text: str, kind: str) -> bytes:
    return (
        f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {len(text)}\r\n\r\n{text}"
    ).encode()


class _Engine(asyncio.Protocol):
    def __init__(self, answers: _Answers, interval_s: float) -> None:
        self._answers = answers
        self._interval_s = interval_s
        self._buffer = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        no_delay(transport)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while (end := request_end(self._buffer)) is not None:
            self._answer(bytes(self._buffer[:end]))
            del self._buffer[:end]

    def _answer(self, request: bytes) -> None:
        if request.startswith(b"GET /metrics"):
            self._transport.write(self._answers.metrics)
        elif request.startswith(b"GET "):
            self._transport.write(self._answers.models)
        else:
            found = _MAX_TOKENS.search(request, max(0, len(request) - 400))
            events = int(found.group(1)) if found else 1
            if events <= 1:
                answers = self._answers
                self._transport.write(_STREAM_HEAD + answers.last + answers.done)
            else:
                self._transport.write(_STREAM_HEAD + self._answers.token)
                asyncio.get_running_loop().call_later(self._interval_s, self._next, events - 1)

    def _next(self, left: int) -> None:
        if self._transport.is_closing():
            return
        if left > 1:
            self._transport.write(self._answers.token)
            asyncio.get_running_loop().call_later(self._interval_s, self._next, left - 1)
        else:
            self._transport.write(self._answers.last + self._answers.done)


async def _serve(model: str, engines: int, interval_s: float) -> None:
    loop = asyncio.get_running_loop()
    answers = _Answers(model)
    servers = [
        await loop.create_server(lambda: _Engine(answers, interval_s), "127.0.0.1", 0)
        for _ in range(engines)
    ]
    ports = [server.sockets[0].getsockname()[1] for server in servers]
    announce_ready(listen=" ".join(f"127.0.0.1:{port}" for port in ports))
    await asyncio.gather(*(server.serve_forever() for server in servers))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--engines", type=int, required=True)
    parser.add_argument("--interval-ms", type=float, required=True)
    words = parser.parse_args()
    uvloop.run(_serve(words.model, words.engines, words.interval_ms / 1_000))
