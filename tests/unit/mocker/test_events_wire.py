"""The mock engine's messages are, byte for byte, those of a real vLLM 0.33."""

import json
from pathlib import Path
from typing import Any, cast

import pytest

from kvatlas_mocker.events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    CacheEvent,
    encode_payload,
    encode_seq,
)

CAPTURES = Path(__file__).parents[2] / "fixtures" / "engines"
KINDS: dict[str, type[CacheEvent]] = {
    "BlockStored": BlockStored,
    "BlockRemoved": BlockRemoved,
    "AllBlocksCleared": AllBlocksCleared,
}


def messages(name: str) -> list[dict[str, Any]]:
    return json.loads((CAPTURES / name).read_text())["messages"]


def plain(value: object) -> object:
    if isinstance(value, dict):
        fields = cast("dict[str, Any]", value)
        if set(fields) == {"__bytes_hex__"}:
            return bytes.fromhex(fields["__bytes_hex__"])
        return {key: plain(item) for key, item in fields.items()}
    if isinstance(value, list):
        return [plain(item) for item in cast("list[object]", value)]
    return value


def event(fields: dict[str, Any]) -> CacheEvent:
    kind = KINDS[fields["type"]]
    return kind(**{name: value for name, value in fields.items() if name != "type"})


FILES = ("vllm-0.33.0-sha256_cbor-int.json", "vllm-0.33.0-dp-ranks.json")
CASES = [
    pytest.param(message, id=f"{file}:{message['name']}")
    for file in FILES
    for message in messages(file)
]


@pytest.mark.parametrize("message", CASES)
def test_a_message_has_the_bytes_of_the_capture(message: dict[str, Any]) -> None:
    unix_s, events, dp_rank = cast(
        "tuple[float, list[dict[str, Any]], int]", plain(message["decoded"])
    )
    _, seq, payload = message["frames_hex"]
    assert encode_payload(unix_s, [event(fields) for fields in events], dp_rank).hex() == payload
    assert encode_seq(message["seq"]).hex() == seq


def test_the_captures_cover_all_kinds_of_events() -> None:
    seen = {e["type"] for file in FILES for m in messages(file) for e in m["decoded"][1]}
    assert seen == set(KINDS)
