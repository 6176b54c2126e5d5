"""The optimizations of the index, each with the cargo feature that leaves it out."""

import re
from dataclasses import dataclass
from pathlib import Path

_NOT_CODE = re.compile(r"\s*(//.*)?$")


@dataclass(frozen=True, slots=True)
class Trick:
    """One optimization.

    Attributes:
        name: the feature `without-NAME` of the crate kvatlas-index leaves it out.
        files: files that are about it alone, below `libs`.
        lines_elsewhere: its lines of code in other files.
        kept_memory: measured in memory taken from the system beforehand. False: it is about taking
            memory.
    """

    name: str
    files: tuple[str, ...] = ()
    lines_elsewhere: int = 0
    kept_memory: bool = True

    @property
    def feature(self) -> str:
        """The cargo feature that leaves it out."""
        return f"kvatlas-index/without-{self.name}"

    def lines(self, libs: Path) -> int:
        """Lines of code, without comments and tests."""
        return self.lines_elsewhere + sum(_code_lines(libs / file) for file in self.files)


TRICKS = (
    Trick("probe-filter", ("index/rust/src/table/probe_filter.rs",), 12),
    Trick("prefix-end-cache", ("index/rust/src/lookup/prefix_end_cache.rs",), 30),
    Trick("tie-break-cache", ("index/rust/src/lookup/tie_break_cache.rs",), 75),
    Trick("probe-ring", ("index/rust/src/apply/probe_ring.rs",), 120),
    Trick("groups", (), 10),
    Trick("lone-writer-windows", (), 35),
    Trick("large-pages", ("pages/rust/src/heap.rs", "pages/rust/src/system.rs"), 0),
    Trick("prefault", ("pages/rust/src/prefault.rs",), 60, kept_memory=False),
    Trick("leaps", (), 8),
    Trick("near-places", (), 17),
    Trick("sorted-positions", (), 17),
    Trick("chained-ahead", (), 3),
    Trick("staggered-growth", (), 3, kept_memory=False),
)


def _code_lines(file: Path) -> int:
    code = file.read_text(encoding="utf-8").partition("#[cfg(test)]")[0]
    return sum(_NOT_CODE.match(line) is None for line in code.splitlines())
