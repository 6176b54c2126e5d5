"""FindMatches."""

from kvatlas_loadtest.bench.rows import Row


def run(quick: bool) -> list[Row]:  # noqa: FBT001 - every benchmark has this shape
    """FindMatches."""
    return []
