"""Adds the metrics of several processes up to those of one frontend.

| kind | value of the frontend |
|---|---|
| counter, histogram, summary | the sum, over processes that have ended too: it never goes back |
| gauge | the highest value, or the sum for those in `SUMMED_GAUGES`; a process that ended has none |
| `…_created` | the earliest time |

A process that is killed takes along what it counted since its last sample: at most a second, and
nothing that was ever shown.
"""

from collections.abc import Collection, Iterable
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric

from kvatlas_frontend.processes.control import Family, Sample

_ADDED: Final = frozenset({"counter", "histogram", "summary"})
_CREATED: Final = "_created"


def families(registry: CollectorRegistry) -> list[Family]:
    """All metrics of a registry, as they are now."""
    return [
        Family(
            metric.name,
            metric.documentation,
            metric.type,
            [Sample(sample.name, sample.labels, sample.value) for sample in metric.samples],
        )
        for metric in registry.collect()
    ]


def merged(parts: Iterable[Iterable[Family]], *, summed_gauges: Collection[str]) -> list[Family]:
    """The metrics of one frontend, in the order in which they are first seen."""
    heads: dict[str, Family] = {}
    values: dict[str, dict[tuple[str, tuple[tuple[str, str], ...]], float]] = {}
    for part in parts:
        for family in part:
            heads.setdefault(family.name, family)
            known = values.setdefault(family.name, {})
            is_added = family.kind in _ADDED or family.name in summed_gauges
            for sample in family.samples:
                place = (sample.name, tuple(sorted(sample.labels.items())))
                before = known.get(place)
                if before is None:
                    known[place] = sample.value
                elif family.kind in _ADDED and sample.name.endswith(_CREATED):
                    known[place] = min(before, sample.value)
                elif is_added:
                    known[place] = before + sample.value
                else:
                    known[place] = max(before, sample.value)
    return [
        Family(
            name,
            head.text,
            head.kind,
            [
                Sample(sample, dict(labels), value)
                for (sample, labels), value in values[name].items()
            ],
        )
        for name, head in heads.items()
    ]


class Ended:
    """The counts of the processes that have ended."""

    def __init__(self) -> None:
        self.families: list[Family] = []

    def add(self, last: Iterable[Family]) -> None:
        """Add a process's last sample; its gauges end with it."""
        counts = [family for family in last if family.kind in _ADDED]
        self.families = merged([self.families, counts], summed_gauges=())


def as_metric(family: Family) -> Metric:
    """The type that prometheus_client prints."""
    metric = Metric(family.name, family.text, family.kind)
    for sample in family.samples:
        metric.add_sample(sample.name, sample.labels, sample.value)
    return metric
