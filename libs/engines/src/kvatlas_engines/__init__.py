"""Follows the KV-cache events that inference engines publish, and names what their formats can hold.

    PUB socket ──subscription──▶ messages ──sequencer──▶ the engine's payloads, in order, none missing
                    replay ◀──requests──┘

`follower` is the entry point. The payloads themselves are read by the native module
(`libs/engines/rust`).
"""

from typing import Literal

from kvatlas_engines.refusal_reason import RefusalReason

EngineName = Literal["vllm", "sglang"]
"""The engines whose payloads can be read."""

__all__ = ["EngineName", "RefusalReason"]
