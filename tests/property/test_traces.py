"""Any trace: the LRU curve is that of a plain LRU cache, and only trees are accepted."""

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvatlas_loadtest.trace import TraceError
from kvatlas_loadtest.traces.analysis import analyze
from kvatlas_loadtest.traces.draws import Knobs
from kvatlas_loadtest.traces.models import MODELS, Source, synthesize
from kvatlas_loadtest.traces.readers import read_parts
from kvatlas_loadtest.traces.requests import joined
from tests.unit.loadtest.traces import Paths, lru_hits, write_paths


@st.composite
def tree_paths(draw: st.DrawFn) -> Paths:
    """Prompts over a small alphabet; an id is the number of a whole prefix."""
    letters = st.lists(st.integers(0, 2), min_size=1, max_size=6)
    prompts = draw(st.lists(letters, min_size=1, max_size=30))
    numbers: dict[tuple[int, ...], int] = {}
    return [
        [
            numbers.setdefault(tuple(prompt[: end + 1]), 3 * len(numbers))
            for end in range(len(prompt))
        ]
        for prompt in prompts
    ]


@settings(deadline=None)
@given(tree_paths())
def test_the_lru_curve_is_that_of_a_plain_lru_cache(paths: Paths) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = write_paths(Path(folder) / "t.jsonl", paths)
        parts = list(read_parts(file, tokens_per_id=512))
    found = analyze(parts, name="t", tokens_per_id=512)
    nodes = {block for path in paths for block in path}
    assert found.tree.nodes == len(nodes)
    for capacity in range(1, len(nodes) + 2):
        hits = int(found.distances.up_to(found.capacities[:1] * capacity)[0])
        assert hits == lru_hits(paths, capacity)


@settings(deadline=None)
@given(st.lists(st.lists(st.integers(0, 4), min_size=1, max_size=4), min_size=1, max_size=8))
def test_exactly_the_traces_that_are_trees_are_accepted(paths: Paths) -> None:
    parents: dict[int, set[int]] = {}
    for path in paths:
        for before, block in zip([-1, *path], path, strict=False):
            parents.setdefault(block, set()).add(before)
    is_tree = all(len(found) == 1 for found in parents.values())
    with tempfile.TemporaryDirectory() as folder:
        file = write_paths(Path(folder) / "t.jsonl", paths)
        parts = read_parts(file, tokens_per_id=512)
        if is_tree:
            assert analyze(parts, name="t", tokens_per_id=512).requests == len(paths)
        else:
            with pytest.raises(TraceError, match=r"line \d+: hash_ids\[\d\]: id \d "):
                analyze(parts, name="t", tokens_per_id=512)


@settings(deadline=None)
@given(
    tree_paths(),
    st.sampled_from(MODELS),
    st.integers(1, 80),
    st.integers(0, 99),
    st.builds(
        Knobs,
        prefix_len_multiplier=st.floats(0.2, 3),
        prefix_root_multiplier=st.integers(1, 3),
        prompt_len_multiplier=st.floats(0.01, 3),
        osl_multiplier=st.floats(0.1, 3),
        speedup_ratio=st.floats(0.1, 9),
    ),
)
def test_any_trace_gives_a_trace_of_any_length(
    paths: Paths, model: str, count: int, seed: int, knobs: Knobs
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = write_paths(Path(folder) / "t.jsonl", paths)
        source = Source("t", joined(list(read_parts(file, tokens_per_id=512))), 512)
    parts = list(synthesize(source, model, count=count, seed=seed, knobs=knobs))
    new = joined(parts)
    assert len(new) == count
    assert (new.timestamps_ms[1:] >= new.timestamps_ms[:-1]).all()
    assert (new.blocks == -(-new.input_tokens // 512)).all()
    assert analyze(parts, name="new", tokens_per_id=512).requests == count  # it is a tree
