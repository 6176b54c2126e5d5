"""The dictionary baseline in Python: exact where it verifies, wrong where the published form is."""

import importlib.util
import struct
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvatlas_hashing import reference

FILE = Path(__file__).parents[3] / "libs/index/baselines/nested_dict.py"

WORKERS = st.integers(0, 3)
PROMPTS = st.lists(st.integers(1, 3), min_size=1, max_size=8)
STEPS = st.lists(
    st.tuples(st.just("store"), WORKERS, PROMPTS)
    | st.tuples(st.just("remove"), WORKERS, PROMPTS)
    | st.tuples(st.just("clear"), WORKERS, PROMPTS),
    max_size=30,
)


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("nested_dict", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


baseline = load()


def prefixes(prompt: list[int]) -> list[int]:
    return [int(value) for value in reference.sequence_hashes(prompt)]


@given(STEPS, PROMPTS)
def test_the_verified_form_gives_the_definitions_answers(
    steps: list[tuple[str, int, list[int]]], asked: list[int]
) -> None:
    index = baseline.NestedDict(verified=True)
    held: dict[int, set[tuple[int, ...]]] = {}
    for what, worker, prompt in steps:
        paths = [tuple(prompt[: depth + 1]) for depth in range(len(prompt))]
        mine = held.setdefault(worker, set())
        if what == "store":
            known = sum(path in mine for path in paths)
            parent = prefixes(prompt)[known - 1] if known else None
            index.store(worker, parent, prompt[known:])
            mine.update(paths)
        elif what == "remove":
            below = sorted((p for p in mine if p[: len(prompt)] == tuple(prompt)), key=len)
            index.remove(worker, [prefixes(list(path))[-1] for path in reversed(below)])
            mine.difference_update(below)
        else:
            index.clear(worker)
            mine.clear()
    expected = {
        worker: depth
        for worker, mine in held.items()
        if (depth := sum(tuple(asked[: at + 1]) in mine for at in range(len(asked))))
    }
    assert index.find(asked) == expected


@pytest.mark.parametrize(("verified", "depth"), [(True, 1), (False, 4)])
def test_the_published_form_takes_blocks_of_another_prompt_for_ours(
    verified: bool, depth: int
) -> None:
    index = baseline.NestedDict(verified=verified)
    index.store(0, None, [1])
    index.store(0, None, [2, 20, 30, 40])
    assert index.find([1, 20, 30, 40]) == {0: depth}


def test_a_stream_is_played_and_anything_else_refused() -> None:
    header = struct.pack("<8s6I12Q", b"KVOPS\0\0\0", 1, 128, 1, 16, 16, 1, *[0] * 12)
    parent = prefixes([5])[0]
    data = b"".join(
        [
            header,
            struct.pack("<QIIQQ1Q", 0, 1, 0, 1, 0, 5),
            struct.pack("<QIIQQ2Q", 1, 1, 0, 2, parent, 6, 7),
            struct.pack("<QIIQQ3Q", 2, 0, 0, 3, 0, 5, 6, 7),
            struct.pack("<QIIQQ1Q", 3, 2, 0, 1, 0, prefixes([5, 6, 7])[2]),
        ]
    )
    index = baseline.NestedDict(verified=True)
    assert baseline.play(index, data).startswith("nested dictionaries, Python")
    assert index.find([5, 6, 7]) == {0: 2}
    with pytest.raises(ValueError, match="version 2"):
        list(baseline.records(header.replace(b"\x01\0\0\0\x80", b"\x02\0\0\0\x80")))
