"""Reads what a process says on `/metrics`: sums of counters, quantiles of histograms."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_SAMPLE = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True, slots=True)
class Sample:
    """One line of a metrics page."""

    name: str
    labels: Mapping[str, str]
    value: float


def parse(page: str) -> list[Sample]:
    """All samples of a page in the text format; comments are left out."""
    samples: list[Sample] = []
    for line in page.splitlines():
        match = _SAMPLE.match(line)
        if match:
            name, labels, value = match.groups()
            samples.append(Sample(name, dict(_LABEL.findall(labels or "")), float(value)))
    return samples


def total(samples: Sequence[Sample], name: str, **labels: str) -> float:
    """The sum over all samples of that name that have these labels; 0 if there are none."""
    return sum(s.value for s in samples if s.name == name and labels.items() <= s.labels.items())


@dataclass(frozen=True, slots=True)
class Histogram:
    """Observations by bucket, added up over labels and pages.

    Attributes:
        bounds: upper bounds, rising, the last one infinite.
        counts: observations at or below each bound.
    """

    bounds: tuple[float, ...]
    counts: tuple[float, ...]

    @classmethod
    def read(cls, samples: Sequence[Sample], name: str, **labels: str) -> "Histogram":
        """Add up every series of the histogram `name` that has these labels."""
        by_bound: dict[float, float] = {}
        for sample in samples:
            if sample.name == f"{name}_bucket" and labels.items() <= sample.labels.items():
                bound = float(sample.labels["le"])
                by_bound[bound] = by_bound.get(bound, 0.0) + sample.value
        bounds = tuple(sorted(by_bound))
        return cls(bounds, tuple(by_bound[bound] for bound in bounds))

    def quantile(self, share: float) -> float | None:
        """Where `share` of the observations lie below, interpolated within its bucket.

        None: nothing was observed. Beyond the last finite bound: that bound.
        """
        observed = self.counts[-1] if self.counts else 0.0
        if observed == 0:
            return None
        rank = share * observed
        lower_bound, lower_count = 0.0, 0.0
        for bound, count in zip(self.bounds, self.counts, strict=True):
            if count >= rank and count > lower_count:
                if bound == float("inf"):
                    return lower_bound
                return lower_bound + (bound - lower_bound) * (rank - lower_count) / (
                    count - lower_count
                )
            lower_bound, lower_count = bound, count
        return lower_bound
