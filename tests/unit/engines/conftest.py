"""Reads the captures under tests/fixtures/engines and shows neutral events as comparable tuples."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvatlas_engines.frames import Message, parse_frames
from tests.reference.engines.events import (
    Cleared,
    EngineEvent,
    Removed,
    Stored,
    StoredByHash,
    Unindexable,
)
from tests.reference.engines.payload import decode_payload
from tests.reference.engines.readers import READERS

CAPTURES = Path(__file__).parents[2] / "fixtures" / "engines"

Plain = tuple[Any, ...]


def plain(event: EngineEvent) -> Plain:
    """Show an event with everything that the mirror will use of it."""
    match event:
        case Stored():
            assert event.tokens.dtype.name == "uint32"
            return (
                "stored",
                list(event.block_hashes),
                event.parent,
                event.tokens.tolist(),
                event.tier.name,
                event.lora_name,
                event.cache_salt,
                event.items,
            )
        case StoredByHash():
            return ("stored_by_hash", list(event.block_hashes), event.tier.name)
        case Removed():
            return ("removed", list(event.block_hashes), event.tier.name)
        case Cleared():
            return ("cleared", None if event.tier is None else event.tier.name)
        case Unindexable():
            return ("unindexable", event.reason.value, event.blocks)


@pytest.fixture
def capture() -> Callable[[str], dict[str, Any]]:
    return lambda name: json.loads((CAPTURES / f"{name}.json").read_text())


@pytest.fixture
def read_capture(
    capture: Callable[[str], dict[str, Any]],
) -> Callable[[str, int], dict[str, tuple[int, int | None, list[Plain]]]]:
    """Read a whole capture with one reader: by message (seq, dp_rank, events)."""

    def read(name: str, block_size: int) -> dict[str, tuple[int, int | None, list[Plain]]]:
        document = capture(name)
        reader = READERS[document["engine"]](block_size)
        shown: dict[str, tuple[int, int | None, list[Plain]]] = {}
        for entry in document["messages"]:
            message = parse_frames([bytes.fromhex(frame) for frame in entry["frames_hex"]])
            assert isinstance(message, Message)
            batch = decode_payload(message.payload, reader.order)
            events = [plain(event) for event in reader.read(batch.events)]
            shown[entry["name"]] = (message.seq, batch.dp_rank, events)
        return shown

    return read
