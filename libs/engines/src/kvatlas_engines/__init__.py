"""Readers of the KV-cache events that inference engines publish.

    bytes of a socket ──raw──▶ raw events ──vllm│sglang──▶ the neutral model (events)

`stream` decides what a sequence number means, `follower` moves the bytes.
"""

from collections.abc import Callable, Mapping

from kvatlas_engines.events import (
    Cleared,
    EngineEvent,
    EngineHash,
    Reason,
    Removed,
    Stored,
    StoredByHash,
    Tier,
    Unindexable,
)
from kvatlas_engines.raw import MalformedMessage, RawBatch, decode_payload
from kvatlas_engines.reader import EngineReader
from kvatlas_engines.sglang import SglangReader
from kvatlas_engines.vllm import VllmReader

READERS: Mapping[str, Callable[[int], EngineReader]] = {"vllm": VllmReader, "sglang": SglangReader}
"""By engine name: makes a reader from the configured block size."""

__all__ = [
    "READERS",
    "Cleared",
    "EngineEvent",
    "EngineHash",
    "EngineReader",
    "MalformedMessage",
    "RawBatch",
    "Reason",
    "Removed",
    "SglangReader",
    "Stored",
    "StoredByHash",
    "Tier",
    "Unindexable",
    "VllmReader",
    "decode_payload",
]
