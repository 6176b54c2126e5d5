"""Profiles: what is wrong with one is told before the first request, plugin and slot named."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvatlas_chassis import Settings, SettingsError
from kvatlas_frontend.api.reasons import Reason
from kvatlas_frontend.routing.check import CheckedProfile, check, check_together
from kvatlas_frontend.routing.context import Slot
from kvatlas_frontend.routing.plugin import (
    Kind,
    Mask,
    NoParams,
    PluginSpec,
    Services,
    Unit,
    Values,
)
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


@pytest.mark.parametrize("name", ["least-requests", "round-robin", "random"])
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
    reason = Reason.ROUND_ROBIN

    async def prepare(self, _: object) -> None: ...

    def filter(self, _: object, __: object) -> None: ...

    def score(self, _: object, candidates: Mask) -> Values:
        return np.zeros(len(candidates))

    def pick(self, _: object, __: object, ___: object) -> int:
        return 0


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
        "{name: p, pick: lowest-cost, score: [load: {weight: -1}]}",
        "{name: p, pick: lowest-cost, score: [load: {weight: .inf}]}",
        "{name: p, pick: lowest-cost, score: [load: {weight: much}]}",
        "{name: p, pick: lowest-cost, share_tokens: 0}",
    ],
)
def test_another_shape_is_refused(tmp_path: Path, text: str) -> None:
    found = problems(text, tmp_path)
    assert {code for code, _, _ in found} == {"bad_shape"}


def test_what_is_no_yaml_is_refused(tmp_path: Path) -> None:
    assert problems("{name: [", tmp_path) == [("not_yaml", None, None)]


def test_a_missing_file_names_the_policies_that_there_are() -> None:
    with pytest.raises(
        ProfileError, match="kv-aware, least-loaded, least-requests, round-robin"
    ) as raised:
        load_profile("kv-awre")
    assert "kv-awre" in str(raised.value)


def test_a_name_is_registered_once() -> None:
    registry = built_in()
    with pytest.raises(ValueError, match="tokens"):
        registry.register(spec("tokens", (), ()))


def scorer(name: str, unit: Unit) -> PluginSpec[Any]:
    return PluginSpec(name, Kind.SCORE, NoParams, build_nothing, unit=unit)


def scorers() -> Registry:
    registry = built_in()
    for name in ("hits", "zone"):
        registry.register(scorer(name, Unit.SHARE))
    registry.register(PluginSpec("best", Kind.PICK, NoParams, build_nothing, takes=(Unit.SHARE,)))
    return registry


def factors(document: dict[str, Any]) -> list[float]:
    steps = check(Profile.model_validate(document), scorers()).steps[Kind.SCORE]
    return [step.factor for step in steps]


def test_a_weight_is_the_steps_own_and_reaches_no_plugin() -> None:
    """Weight 2 of a cost in tokens, weight 1 by default."""
    document = {
        "name": "p",
        "score": [{"load": {"weight": 2, "per_request": 3}}],
        "pick": "lowest-cost",
    }
    (step,) = check(Profile.model_validate(document), built_in()).steps[Kind.SCORE]
    assert (step.factor, step.params.model_dump()) == (2.0, {"per_request": 3.0, "per_token": 0.0})
    assert factors({"name": "p", "score": ["load"], "pick": "lowest-cost"}) == [1.0]


def test_shares_become_costs_by_their_sign() -> None:
    assert factors({"name": "p", "score": [{"zone": {"weight": 2}}, "hits"], "pick": "best"}) == [
        -2.0,
        -1.0,
    ]


def test_a_stated_scale_joins_shares_and_tokens() -> None:
    """A full share of weight 2 takes 2 * 4096 tokens off the cost."""
    document = {
        "name": "p",
        "score": [{"zone": {"weight": 2}}, "load"],
        "pick": "lowest-cost",
        "share_tokens": 4096,
    }
    assert factors(document) == [-8192.0, 1.0]


def test_units_do_not_mix_without_a_scale(tmp_path: Path) -> None:
    text = "{name: p, score: [load, zone, hits], pick: lowest-cost}"
    assert problems(text, tmp_path, scorers()) == [("mixed_units", "zone", None)]


@pytest.mark.parametrize(
    ("scores", "pick"), [("load", "best"), ("zone", "lowest-cost"), ("load", "round-robin")]
)
def test_a_picker_that_cannot_take_the_scores_is_named(
    tmp_path: Path, scores: str, pick: str
) -> None:
    text = f"{{name: p, score: [{scores}], pick: {pick}}}"
    assert problems(text, tmp_path, scorers()) == [("wrong_unit", pick, None)]


def test_the_picker_of_a_scaled_profile_takes_tokens(tmp_path: Path) -> None:
    text = "{name: p, score: [zone, load], pick: best, share_tokens: 100}"
    assert problems(text, tmp_path, scorers()) == [("wrong_unit", "best", None)]


ODD_SPECS: list[dict[str, Any]] = [
    {"kind": Kind.SCORE},
    {"kind": Kind.FILTER, "unit": Unit.SHARE},
    {"kind": Kind.FILTER, "takes": (Unit.SHARE,)},
    {"kind": Kind.PICK, "writes": (Slot[int]("x"),)},
]


@pytest.mark.parametrize("wrong", ODD_SPECS)
def test_a_spec_that_contradicts_its_kind_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="'odd'"):
        PluginSpec("odd", params=NoParams, build=build_nothing, **wrong)


def filters(*specs: tuple[str, dict[str, Any]]) -> Registry:
    registry = built_in()
    for name, needs in specs:
        registry.register(PluginSpec(name, Kind.FILTER, NoParams, build_nothing, **needs))
    return registry


def test_a_missing_dependency_is_named(tmp_path: Path) -> None:
    registry = filters(("near", {"depends": ("available", "lowest-cost")}))
    assert problems("{name: p, filter: [near], pick: lowest-cost}", tmp_path, registry) == [
        ("missing_dependency", "near", None)
    ]
    text = "{name: p, filter: [available, near], pick: lowest-cost}"
    file = tmp_path / "whole.yaml"
    file.write_text(text)
    assert check(load_profile(str(file)), registry).name == "p"


def test_filters_run_after_those_that_they_name() -> None:
    registry = filters(("first", {}), ("second", {"after": ("first", "absent")}))
    profile = Profile.model_validate(
        {"name": "p", "filter": ["second", "available", "first"], "pick": "lowest-cost"}
    )
    steps = check(profile, registry).steps[Kind.FILTER]
    assert [step.spec.name for step in steps] == ["available", "first", "second"]


def test_orders_that_contradict_are_refused(tmp_path: Path) -> None:
    registry = filters(
        ("one", {"after": ("two",)}), ("two", {"after": ("one",)}), ("late", {"after": ("load",)})
    )
    text = "{name: p, filter: [one, two, late], score: [load], pick: lowest-cost}"
    assert problems(text, tmp_path, registry) == [
        ("order_conflict", "late", None),
        ("order_conflict", "one", None),
    ]


def test_what_a_plugin_reads_may_depend_on_its_parameters(tmp_path: Path) -> None:
    a: Slot[int] = Slot("a")

    class Params(Settings):
        use: bool = False

    def reads(params: Params) -> tuple[Slot[Any], ...]:
        return (a,) if params.use else ()

    registry = built_in()
    registry.register(PluginSpec("maybe", Kind.FILTER, Params, build_nothing_of, reads))
    assert check(
        Profile.model_validate({"name": "p", "filter": ["maybe"], "pick": "lowest-cost"}), registry
    )
    text = "{name: p, filter: [maybe: {use: true}], pick: lowest-cost}"
    assert problems(text, tmp_path, registry) == [("missing_writer", "maybe", "a")]


def build_nothing_of(_: Services, __: Settings) -> Nothing:
    return Nothing()


def checked(name: str, *prepare: Any) -> CheckedProfile:  # noqa: ANN401 - any entry
    document = {"name": name, "prepare": list(prepare), "pick": "lowest-cost"}
    return check(Profile.model_validate(document), built_in())


def test_profiles_of_one_workflow_prepare_once() -> None:
    together = check_together(
        [checked("decode", "tokens"), checked("prefill", "matches", "chunk-hashes", "tokens")]
    )
    assert [step.spec.name for step in together] == ["tokens", "chunk-hashes", "matches"]


def test_profiles_that_prepare_differently_do_not_fit_one_workflow() -> None:
    few = checked("few", "tokens", "chunk-hashes", {"matches": {"limit": 1}})
    many = checked("many", "tokens", "chunk-hashes", {"matches": {"limit": 2}})
    with pytest.raises(ProfileError, match="few \\+ many") as raised:
        check_together([few, many])
    assert [(one.code, one.plugin) for one in raised.value.problems] == [
        ("different_preparation", "matches")
    ]
