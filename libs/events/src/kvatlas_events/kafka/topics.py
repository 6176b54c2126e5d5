"""The topics of a cell: their names, and the settings to create them with."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from kvatlas_events.claims import CLAIM_TTL_S

PARTITIONS = 8
"""Number for a log that we create. Partitions can be added later; workers that move need a recovery."""
LOG_CONFIG = {
    "cleanup.policy": "delete",
    "retention.ms": str(3_600_000),
    "retention.bytes": str(1 << 30),  # of each partition
    "segment.ms": str(600_000),  # whole segments are deleted, so records stay 60 to 70 minutes
    "segment.bytes": str(64 << 20),
    "message.timestamp.type": "LogAppendTime",
    "max.message.bytes": str(2 << 20),  # a record of 1 MiB, its envelope, and reserve
}
_CLAIMS_CONFIG = {
    "cleanup.policy": "delete",
    "retention.ms": str(CLAIM_TTL_S * 1_000),
    "segment.ms": str(600_000),
}

PROBE_KEY = b"probe/"
"""Key prefix of a prober's mark: a message without a value, whose key is not a worker's."""

_CELL = re.compile(r"[a-zA-Z0-9._-]{1,200}")


@dataclass(frozen=True, slots=True)
class TopicPlan:
    """A topic's name, and the settings to create it with."""

    name: str
    partitions: int
    config: Mapping[str, str] = field(repr=False)


def log_topic(cell: str) -> TopicPlan:
    """Return the topic of the cell's records.

    Raises:
        ValueError: Kafka does not allow the name.
    """
    return TopicPlan(_name(cell, "log"), PARTITIONS, LOG_CONFIG)


def claims_topic(cell: str) -> TopicPlan:
    """Return the topic of the cell's claims; one partition, because every publisher reads all of it.

    Raises:
        ValueError: Kafka does not allow the name.
    """
    return TopicPlan(_name(cell, "claims"), 1, _CLAIMS_CONFIG)


def _name(cell: str, what: str) -> str:
    if not _CELL.fullmatch(cell):
        raise ValueError(
            f"kafka: a topic is named after the cell, so a cell cannot be called {cell!r}; "
            "use at most 200 letters, digits, '.', '_' and '-'"
        )
    return f"kvatlas.{cell}.{what}"
