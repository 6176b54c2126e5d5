"""Any profile whose slots allow an order gets one, from any order it is written in; others never."""

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvatlas_frontend.routing.check import check
from kvatlas_frontend.routing.context import RoutingContext, Slot
from kvatlas_frontend.routing.plugin import Kind, NoParams, PluginSpec, Services
from kvatlas_frontend.routing.plugins import built_in
from kvatlas_frontend.routing.profile import Profile, ProfileError
from kvatlas_frontend.routing.registry import Registry
from kvatlas_frontend.routing.slots import WRITTEN_BY_WORKFLOW


class Nothing:
    async def prepare(self, _: RoutingContext) -> None: ...


def build_nothing(_: Services, __: NoParams) -> Nothing:
    return Nothing()


def registry_of(reads: list[set[int]]) -> tuple[Registry, list[PluginSpec[Any]]]:
    """Plugin i writes slot i and reads those of `reads[i]`."""
    slots: list[Slot[int]] = [Slot(f"s{i}") for i in range(len(reads))]
    specs: list[PluginSpec[Any]] = [
        PluginSpec(
            f"p{i}",
            Kind.PREPARE,
            NoParams,
            build_nothing,
            tuple(slots[j] for j in sorted(read)),
            (slots[i],),
        )
        for i, read in enumerate(reads)
    ]
    registry = built_in()
    for spec in specs:
        registry.register(spec)
    return registry, specs


def profile_of(specs: list[PluginSpec[Any]]) -> Profile:
    names = [spec.name for spec in specs]
    return Profile.model_validate({"name": "p", "prepare": names, "pick": "lowest-cost"})


@st.composite
def acyclic(draw: st.DrawFn) -> list[set[int]]:
    count = draw(st.integers(1, 12))
    return [
        draw(st.sets(st.integers(0, i - 1), max_size=4)) if i else set[int]() for i in range(count)
    ]


@given(reads=acyclic(), seed=st.integers())
def test_writers_run_before_readers(reads: list[set[int]], seed: int) -> None:
    registry, specs = registry_of(reads)
    random.Random(seed).shuffle(specs)
    ordered = check(profile_of(specs), registry).steps[Kind.PREPARE]
    assert sorted(step.spec.name for step in ordered) == sorted(spec.name for spec in specs)
    written: set[Slot[Any]] = set(WRITTEN_BY_WORKFLOW)
    for step in ordered:
        assert written.issuperset(step.reads)
        written.update(step.spec.writes)


@given(reads=acyclic(), data=st.data())
def test_a_ring_anywhere_is_refused(reads: list[set[int]], data: st.DataObject) -> None:
    """An edge from a plugin back to itself or to one that it depends on closes a ring."""
    start = data.draw(st.integers(0, len(reads) - 1))
    reached = {start}
    for _ in reads:
        reached |= {j for i in reached for j in reads[i]}
    reads[data.draw(st.sampled_from(sorted(reached)))].add(start)
    registry, specs = registry_of(reads)
    with pytest.raises(ProfileError) as raised:
        check(profile_of(specs), registry)
    assert [problem.code for problem in raised.value.problems] == ["cycle"]


@given(reads=acyclic(), data=st.data())
def test_a_plugin_left_out_is_missed_by_exactly_its_readers(
    reads: list[set[int]], data: st.DataObject
) -> None:
    left_out = data.draw(st.integers(0, len(reads) - 1))
    readers = {f"p{i}" for i, read in enumerate(reads) if left_out in read}
    registry, specs = registry_of(reads)
    profile = profile_of([spec for i, spec in enumerate(specs) if i != left_out])
    if not readers:
        check(profile, registry)
        return
    with pytest.raises(ProfileError) as raised:
        check(profile, registry)
    found = raised.value.problems
    assert {(one.code, one.plugin, one.slot) for one in found} == {
        ("missing_writer", reader, f"s{left_out}") for reader in readers
    }
