"""Profiles: what is wrong with one is told before the first request, plugin and slot named."""

from pathlib import Path
from typing import Any

import pytest

from kvatlas_chassis import SettingsError
from kvatlas_frontend.routing.check import check
from kvatlas_frontend.routing.context import Slot
from kvatlas_frontend.routing.plugin import Kind, NoParams, PluginSpec, Services
from kvatlas_frontend.routing.plugins import built_in
from kvatlas_frontend.routing.profile import BUILT_IN, Profile, ProfileError, load_profile
from kvatlas_frontend.routing.registry import Registry

EXAMPLES = Path(__file__).parents[3] / "deploy" / "policies"


def problems(text: str, tmp_path: Path, registry: Registry | None = None) -> list[tuple[Any, ...]]:
    file = tmp_path / "profile.yaml"
    file.write_text(text)
    with pytest.raises(ProfileError) as raised:
        check(load_profile(str(file)), registry or built_in())
    assert "\n" not in str(raised.value)
    assert isinstance(raised.value, SettingsError)
    assert raised.value.exit_status == 2
    return [(one.code, one.plugin, one.slot) for one in raised.value.problems]


@pytest.mark.parametrize("name", BUILT_IN)
def test_shipped_profiles_can_run(name: str) -> None:
    assert check(load_profile(name), built_in()).name == name


@pytest.mark.parametrize("file", sorted(EXAMPLES.glob("*.yaml")), ids=lambda file: file.stem)
def test_example_profiles_can_run(file: Path) -> None:
    assert check(load_profile(str(file)), built_in()).name == file.stem


def test_there_are_example_profiles() -> None:
    assert list(EXAMPLES.glob("*.yaml"))


@pytest.mark.parametrize("name", ["least-loaded", "round-robin"])
def test_profiles_without_matches_prepare_nothing(name: str) -> None:
    assert check(load_profile(name), built_in()).steps[Kind.PREPARE] == []


def test_the_order_of_preparation_does_not_matter() -> None:
    backwards = Profile.model_validate(
        {"name": "p", "prepare": ["matches", "chunk-hashes", "tokens"], "pick": "lowest-cost"}
    )
    steps = check(backwards, built_in()).steps[Kind.PREPARE]
    assert [step.spec.name for step in steps] == ["tokens", "chunk-hashes", "matches"]


def test_an_unknown_plugin_is_named(tmp_path: Path) -> None:
    assert problems("{name: p, filter: [availible], pick: lowest-cost}", tmp_path) == [
        ("unknown_plugin", "availible", None)
    ]


def test_a_plugin_of_another_kind_is_unknown_here(tmp_path: Path) -> None:
    assert problems("{name: p, filter: [tokens], pick: lowest-cost}", tmp_path) == [
        ("unknown_plugin", "tokens", None)
    ]


@pytest.mark.parametrize("params", ["{limt: 4}", "{limit: -1}", "{limit: many}"])
def test_a_wrong_parameter_is_named(tmp_path: Path, params: str) -> None:
    text = f"{{name: p, prepare: [tokens, chunk-hashes, {{matches: {params}}}], pick: lowest-cost}}"
    assert problems(text, tmp_path) == [("bad_parameter", "matches", None)]


def test_a_slot_that_nobody_writes_is_named(tmp_path: Path) -> None:
    text = "{name: p, prepare: [tokens], score: [prefill], pick: lowest-cost}"
    assert problems(text, tmp_path) == [("missing_writer", "prefill", "matches")]


def test_a_plugin_named_twice_is_refused(tmp_path: Path) -> None:
    text = "{name: p, prepare: [tokens, tokens], pick: lowest-cost}"
    assert problems(text, tmp_path) == [("duplicate_plugin", "tokens", None)]


class Nothing:
    async def prepare(self, _: object) -> None: ...


def build_nothing(_: Services, __: NoParams) -> Nothing:
    return Nothing()


def spec(name: str, reads: tuple[Slot[Any], ...], writes: tuple[Slot[Any], ...]) -> PluginSpec[Any]:
    return PluginSpec(name, Kind.PREPARE, NoParams, build_nothing, reads, writes)


def test_two_writers_of_a_slot_are_refused(tmp_path: Path) -> None:
    registry = built_in()
    place: Slot[int] = Slot("place")
    registry.register(spec("one", (), (place,)))
    registry.register(spec("two", (), (place,)))
    text = "{name: p, prepare: [one, two], pick: lowest-cost}"
    assert problems(text, tmp_path, registry) == [("duplicate_writer", "two", "place")]


def test_plugins_that_wait_for_one_another_are_refused(tmp_path: Path) -> None:
    registry = built_in()
    a: Slot[int] = Slot("a")
    b: Slot[int] = Slot("b")
    registry.register(spec("one", (a,), (b,)))
    registry.register(spec("two", (b,), (a,)))
    text = "{name: p, prepare: [one, two], pick: lowest-cost}"
    assert problems(text, tmp_path, registry) == [("cycle", "one", "a")]


def test_everything_that_is_wrong_is_told_at_once(tmp_path: Path) -> None:
    text = "{name: p, prepare: [x], filter: [y], score: [load: {per_day: 1}], pick: z}"
    assert problems(text, tmp_path) == [
        ("unknown_plugin", "x", None),
        ("unknown_plugin", "y", None),
        ("bad_parameter", "load", None),
        ("unknown_plugin", "z", None),
    ]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{name: p}",
        "{name: p, pick: [a, b]}",
        "{name: p, pick: {a: 1, b: 2}}",
        "{name: p, pick: lowest-cost, weight: 2}",
        "{name: p, pick: {lowest-cost: 5}}",
        "{name: p, pick: lowest-cost, score: load}",
    ],
)
def test_another_shape_is_refused(tmp_path: Path, text: str) -> None:
    found = problems(text, tmp_path)
    assert {code for code, _, _ in found} == {"bad_shape"}


def test_what_is_no_yaml_is_refused(tmp_path: Path) -> None:
    assert problems("{name: [", tmp_path) == [("not_yaml", None, None)]


def test_a_missing_file_names_the_policies_that_there_are() -> None:
    with pytest.raises(ProfileError, match="kv-aware, least-loaded, round-robin") as raised:
        load_profile("kv-awre")
    assert "kv-awre" in str(raised.value)


def test_a_name_is_registered_once() -> None:
    registry = built_in()
    with pytest.raises(ValueError, match="tokens"):
        registry.register(spec("tokens", (), ()))
