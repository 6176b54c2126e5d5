"""Reads a streamed OpenAI answer from the pieces that the network delivers."""

import json
from collections.abc import Iterator
from typing import Any, cast


class SseError(ValueError):
    """An event of the stream is no JSON object."""


class SseReader:
    """Splits bytes into events. Each answer needs its own reader.

    `done` is true after the closing `[DONE]`.
    """

    def __init__(self) -> None:
        self._rest = b""
        self.done = False

    def feed(self, data: bytes) -> Iterator[dict[str, Any]]:
        """Add `data`; return the events that are now complete, and keep the rest.

        Raises:
            SseError: an event is no JSON object.
        """
        *events, self._rest = (self._rest + data).replace(b"\r\n", b"\n").split(b"\n\n")
        for event in events:
            payload = b"\n".join(
                line[5:].strip() for line in event.split(b"\n") if line.startswith(b"data:")
            )
            if payload == b"[DONE]":
                self.done = True
            elif payload:
                yield _object(payload)


def _object(payload: bytes) -> dict[str, Any]:
    try:
        document: object = json.loads(payload)
    except ValueError:
        raise SseError(f"an event is no JSON: {payload[:80]!r}") from None
    if not isinstance(document, dict):
        raise SseError(f"an event is no object: {payload[:80]!r}")
    return cast("dict[str, Any]", document)


def cached_tokens(event: dict[str, Any]) -> int | None:
    """The engine's own count of cached prompt tokens; None: the event has no usage."""
    usage = event.get("usage")
    if not isinstance(usage, dict):
        return None
    details = cast("dict[str, Any]", usage).get("prompt_tokens_details")
    if not isinstance(details, dict):
        return 0  # vLLM leaves the details out when nothing was cached
    cached = cast("dict[str, Any]", details).get("cached_tokens")
    return cached if isinstance(cached, int) else 0
