"""The topics of a cell: what each is called, and how it is made if nobody has made it."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from kvatlas_events.claims import FORGOTTEN_S

PARTITIONS = 8
"""Of a log that we create. Adding some later moves workers: legal, and costs them a recovery."""
LOG_CONFIG = {
    "cleanup.policy": "delete",
    "retention.ms": str(3_600_000),
    "retention.bytes": str(1 << 30),  # of each partition
    "segment.ms": str(600_000),  # whole segments are forgotten, so an hour is 60 to 70 minutes
    "segment.bytes": str(64 << 20),
    "message.timestamp.type": "LogAppendTime",
    "max.message.bytes": str(2 << 20),  # a record of 1 MiB, what surrounds it, and room
}
_CLAIMS_CONFIG = {
    "cleanup.policy": "delete",
    "retention.ms": str(FORGOTTEN_S * 1_000),
    "segment.ms": str(600_000),
}

_CELL = re.compile(r"[a-zA-Z0-9._-]{1,200}")


@dataclass(frozen=True, slots=True)
class TopicPlan:
    """A topic's name, and what it is made with."""

    name: str
    partitions: int
    config: Mapping[str, str] = field(repr=False)


def log_topic(cell: str) -> TopicPlan:
    """Return the topic of the cell's records.

    Raises:
        ValueError: Kafka takes no such name.
    """
    return TopicPlan(_name(cell, "log"), PARTITIONS, LOG_CONFIG)


def claims_topic(cell: str) -> TopicPlan:
    """Return the topic of the cell's claims; one partition, for all publishers read all of it.

    Raises:
        ValueError: Kafka takes no such name.
    """
    return TopicPlan(_name(cell, "claims"), 1, _CLAIMS_CONFIG)


def _name(cell: str, what: str) -> str:
    if not _CELL.fullmatch(cell):
        raise ValueError(
            f"kafka: a topic is named after the cell, so {cell!r} cannot be one; "
            "use at most 200 letters, digits, '.', '_' and '-'"
        )
    return f"kvatlas.{cell}.{what}"
