"""The specified mirror and the native one behind one interface: an engine's events in, events out."""

from collections import Counter
from collections.abc import Mapping
from typing import Protocol

from kvatlas_engines import EngineName, RefusalReason
from kvatlas_events import (
    Event,
    Hashes,
    Header,
    Tier,
    TierDigest,
    WorkerKey,
    encode_header,
)
from kvatlas_publisher.mirror import Mirror as NativeMirror
from tests.reference.batch_decoder import decode_batch
from tests.reference.engines.payload import decode_payload
from tests.reference.engines.readers import READERS
from tests.reference.mirror import Mirror
from tests.reference.wire_events import payload

_HEADER = encode_header(
    Header(
        worker=WorkerKey(1),
        epoch=1,
        instance_id=1,
        cell="",
        model="",
        block_size=1,
        hash_contract="",
        publisher="",
    )
)


class EngineMirror(Protocol):
    """The interface."""

    @property
    def capacity_blocks(self) -> int: ...
    @capacity_blocks.setter
    def capacity_blocks(self, blocks: int) -> None: ...
    def apply(self, *events: object) -> list[Event]:
        """Apply the events of one message, as the engine encodes them; return the pending events."""
        ...

    def suspect_all(self) -> None: ...
    def digests(self) -> tuple[TierDigest, ...]: ...
    def snapshot(self) -> Mapping[Tier, Hashes]: ...
    @property
    def unindexable(self) -> Counter[RefusalReason]: ...
    @property
    def suspects_removed(self) -> int: ...
    @property
    def held_blocks(self) -> int: ...
    @property
    def suspect_blocks(self) -> int: ...
    def unreachable_blocks(self) -> int: ...


class _SpecifiedEngineMirror(Mirror):
    def __init__(self, engine: EngineName, block_size: int, blocks_max: int) -> None:
        super().__init__(blocks_max=blocks_max)
        self._reader = READERS[engine](block_size)

    def apply(self, *events: object) -> list[Event]:
        batch = decode_payload(payload(*events), self._reader.order)
        return self.apply_events(self._reader.read(batch.events))


class _NativeEngineMirror(NativeMirror):
    def apply(self, *events: object) -> list[Event]:
        self.apply_payloads([payload(*events)], 0)
        return take_pending(self)


def specified_mirror(*, engine: EngineName = "vllm", blocks_max: int = 1_000) -> EngineMirror:
    """Make the specified reader and mirror, for blocks of two tokens."""
    return _SpecifiedEngineMirror(engine, 2, blocks_max)


def native_mirror(*, engine: EngineName = "vllm", blocks_max: int = 1_000) -> EngineMirror:
    """Make the mirror that the publisher runs, for blocks of two tokens."""
    return _NativeEngineMirror(engine=engine, block_size=2, blocks_max=blocks_max)


def take_pending(mirror: NativeMirror) -> list[Event]:
    """Seal the pending events, and read them from the records."""
    sealed = mirror.seal(_HEADER, 1)
    return [event for _, record in sealed for event in decode_batch(record).events]
