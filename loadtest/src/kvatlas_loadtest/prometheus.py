"""Reads a process's `/metrics` page: sums of counters, quantiles of histograms."""

from collections.abc import Sequence
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample


def parse(page: str) -> list[Sample]:
    """All samples of a page in the text format."""
    return [sample for family in text_string_to_metric_families(page) for sample in family.samples]


def total(samples: Sequence[Sample], name: str, **labels: str) -> float:
    """The sum over all samples with that name and these labels; 0 if there are none."""
    return sum(s.value for s in samples if s.name == name and labels.items() <= s.labels.items())


@dataclass(frozen=True, slots=True)
class Histogram:
    """Observations by bucket, added up over labels and pages.

    Attributes:
        bounds: upper bounds in ascending order, the last one infinite.
        counts: number of observations at or below each bound.
    """

    bounds: tuple[float, ...]
    counts: tuple[float, ...]

    @classmethod
    def read(cls, samples: Sequence[Sample], name: str, **labels: str) -> "Histogram":
        """Add up all series of the histogram `name` with these labels."""
        by_bound: dict[float, float] = {}
        for sample in samples:
            if sample.name == f"{name}_bucket" and labels.items() <= sample.labels.items():
                bound = float(sample.labels["le"])
                by_bound[bound] = by_bound.get(bound, 0.0) + sample.value
        bounds = tuple(sorted(by_bound))
        return cls(bounds, tuple(by_bound[bound] for bound in bounds))

    def quantile(self, share: float) -> float | None:
        """The value below which `share` of the observations lie, interpolated within its bucket.

        None: there are no observations. A value beyond the last finite bound is that bound.
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
