"""The results of all designs, stream by stream: the data of tables, plot and rows."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from kvatlas_loadtest.bench.index.streams import Stream

FLAT = "flat index"
"""The generator's name of this project's design."""


@dataclass(frozen=True, slots=True)
class Result:
    """The results of one design on one stream. None: not measured; `note` has the reason.

    Attributes:
        label: the design, and how it was run if that is special.
        ours: it is the flat index, in any setting.
        exact: its answers are never wrong.
        share: share of the stream that was played, from its start.
        window_ms: the shortest window that counts.
        block_ops_per_s: the rate in that window.
        lookup_us: p50, p99 and p999 at half of that rate.
        apply_ms: p50 and p99 at half of that rate, and even_p99: the p99 if every block took the
            average time, so the part that the stream's bursts cause.
        write_ns: processor time per block stored or removed, at the highest rate.
        note: remarks for the reader; empty: none.
    """

    label: str
    ours: bool
    exact: bool
    share: float = 1.0
    window_ms: int | None = None
    block_ops_per_s: float | None = None
    lookup_us: dict[str, float] | None = None
    apply_ms: dict[str, float] | None = None
    bytes_per_membership: float | None = None
    write_ns: float | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class StreamResults:
    """The results of all designs on one stream."""

    stream: Stream
    results: tuple[Result, ...]

    @property
    def best_baseline(self) -> Result | None:
        """The exact baseline with the highest rate; None: none keeps up."""
        kept = [r for r in self.results if not r.ours and r.exact and r.window_ms is not None]
        return max(kept, key=lambda result: result.block_ops_per_s or 0.0, default=None)

    def result(self, label: str) -> Result | None:
        """The result with that label, if there is one."""
        return next((result for result in self.results if result.label == label), None)

    def ratio(self, result: Result) -> float | None:
        """A design's rate divided by that of the best baseline."""
        best = self.best_baseline
        if best is None or not best.block_ops_per_s or result.window_ms is None:
            return None
        return (result.block_ops_per_s or 0.0) / best.block_ops_per_s

    def document(self) -> dict[str, Any]:
        """As JSON."""
        header = self.stream.header
        return {
            "stream": self.stream.kind,
            "title": self.stream.title,
            "workers": header.workers,
            "block_size": header.block_tokens,
            "replicas": header.replicas,
            "capacity": header.capacity,
            "seed": header.seed,
            "block_ops": header.block_ops,
            "from_share": self.stream.from_share,
            "designs": [
                asdict(result) | {"ratio_to_best_baseline": self.ratio(result)}
                for result in self.results
            ],
        }


def documents(all_results: Sequence[StreamResults]) -> list[dict[str, Any]]:
    """All streams as JSON."""
    return [results.document() for results in all_results]
