"""The mirror by itself: time and memory a block, from payloads to sealed records."""

import time

from kvatlas_events import Header, Worker, encode_header
from kvatlas_hashing import CONTRACT
from kvatlas_loadtest.bench.engine_events.traffic import BLOCK_SIZE, Requests, Shape
from kvatlas_loadtest.bench.rows import Medians, Row
from kvatlas_native import Memory
from kvatlas_publisher.mirror import Mirror

BYTES_TARGET = 96.0
_BLOCKS = 1_000_000
_QUICK_BLOCKS = 8_192
_ROUNDS = 3
_AT_ONCE = 256
"""Payloads of one call: as many as a publisher reads off a socket at once."""
_HEADER = Header(
    worker=Worker(1),
    epoch=1,
    instance_id=1,
    cell="bench",
    model="model",
    block_size=BLOCK_SIZE,
    hash_contract=CONTRACT,
    publisher="kvatlas bench",
)


def rows(*, quick: bool) -> list[Row]:
    """Time a block by size of events, and bytes a live block."""
    made: list[Row] = []
    for shape in (Shape(32, 1), Shape(1, 16)):
        messages = shape.whole_messages(_QUICK_BLOCKS if quick else _BLOCKS)
        payloads = list(Requests(shape, 1).messages(messages))
        figures = Medians()
        for _ in range(1 if quick else _ROUNDS):
            mirror, seconds = _told(payloads)
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
                None if quick else BYTES_TARGET,  # a chunk of places is for a thousand blocks
                "lower",
                settings,
            )
        )
    return made


def _told(payloads: list[bytes]) -> tuple[Mirror, float]:
    """A mirror that has heard all, and the seconds that it took."""
    header = encode_header(_HEADER)
    mirror = Mirror(engine="vllm", block_size=BLOCK_SIZE, memory=Memory())
    events = 0
    began_s = time.perf_counter()
    for at in range(0, len(payloads), _AT_ONCE):
        mirror.tell(payloads[at : at + _AT_ONCE], 0)
        if mirror.is_batch_full:
            events += sum(count for count, _ in mirror.seal(header, events + 1))
    mirror.seal(header, events + 1)
    return mirror, time.perf_counter() - began_s
