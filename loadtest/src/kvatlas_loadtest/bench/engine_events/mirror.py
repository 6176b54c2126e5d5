"""The mirror alone: time and memory per block, from payloads to sealed records."""

import time

from kvatlas_events import encode_header
from kvatlas_loadtest.bench.cell import BLOCK_SIZE, record_header
from kvatlas_loadtest.bench.engine_events.traffic import Requests, Shape
from kvatlas_loadtest.bench.rows import Medians, Row
from kvatlas_native import EngineMirror, MirrorMemory

BYTES_TARGET = 96.0
_BLOCKS = 1_000_000
_QUICK_BLOCKS = 8_192
_ROUNDS = 3
_PAYLOADS_A_CALL = 256
"""As many payloads as a publisher reads from a socket at a time."""


def rows(*, quick: bool) -> list[Row]:
    """Time per block by size of events, and bytes per live block."""
    made: list[Row] = []
    for shape in (Shape(32, 1), Shape(1, 16)):
        messages = shape.whole_messages(_QUICK_BLOCKS if quick else _BLOCKS)
        payloads = list(Requests(shape, 1).messages(messages))
        figures = Medians()
        for _ in range(1 if quick else _ROUNDS):
            mirror, seconds = _filled_mirror(payloads)
            figures.add("ns", seconds / mirror.held_blocks * 1e9)
            figures.add("bytes", mirror.memory_bytes / mirror.held_blocks)
        settings = {
            "blocks": messages * shape.blocks_a_message,
            "blocks_an_event": shape.blocks_an_event,
        }
        name = "mirror, payload to sealed record"
        made.append(Row("engine-events", name, figures["ns"], "ns/block", settings=settings))
        made.append(
            Row(
                "engine-events",
                "mirror, memory",
                figures["bytes"],
                "bytes/block",
                None
                if quick
                else BYTES_TARGET,  # memory is allocated for a thousand blocks at once
                "lower",
                settings,
            )
        )
    return made


def _filled_mirror(payloads: list[bytes]) -> tuple[EngineMirror, float]:
    """A mirror that has applied all payloads, and the seconds that it took."""
    header = encode_header(record_header(1, epoch=1))
    mirror = EngineMirror(
        engine="vllm", block_size=BLOCK_SIZE, blocks_max=2 * _BLOCKS, memory=MirrorMemory()
    )
    events = 0
    began_s = time.perf_counter()
    for at in range(0, len(payloads), _PAYLOADS_A_CALL):
        mirror.apply_payloads(payloads[at : at + _PAYLOADS_A_CALL], 0)
        if mirror.is_batch_full:
            events += sum(count for count, _ in mirror.seal(header, events + 1))
    mirror.seal(header, events + 1)
    return mirror, time.perf_counter() - began_s
