"""Checks profiles and orders their plugins, before the first request.

Problem codes, all reported at once, each with its plugin and slot:

- `unknown_plugin`, `duplicate_plugin`, `bad_parameter`: a step of the profile.
- `missing_writer`, `duplicate_writer`: a slot that is read by a plugin and written by none, or by two.
- `missing_dependency`: a plugin that another one depends on is not in the profile.
- `cycle`: prepare plugins wait for one another's slots. `order_conflict`: an `after` cannot be met.
- `mixed_units`: scorers in tokens beside scorers in shares, without `share_tokens`.
- `wrong_unit`: the picker cannot take the unit of the scores.
- `different_preparation`: profiles of one workflow prepare with different parameters.
"""

import difflib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from pydantic import ValidationError

from kvatlas_chassis import Settings
from kvatlas_frontend.routing.context import Slot
from kvatlas_frontend.routing.plugin import Kind, PluginSpec, Slots, Unit
from kvatlas_frontend.routing.profile import Problem, Profile, ProfileError, ScoreStep, Step
from kvatlas_frontend.routing.registry import Registry
from kvatlas_frontend.routing.slots import WRITTEN_BY_WORKFLOW

_KINDS: Final = tuple(Kind)  # in the order in which they run


class CheckedStep:
    """A plugin of a profile with its parameters parsed.

    Attributes:
        factor: a scorer's values times this are costs in the profile's unit; lower is better.
    """

    __slots__ = ("factor", "params", "reads", "spec")

    def __init__(self, spec: PluginSpec[Any], params: Settings, factor: float = 1.0) -> None:
        self.spec = spec
        self.params = params
        self.factor = factor
        self.reads: Slots = spec.slots_read(params)


class CheckedProfile:
    """A profile that can run: the plugins of each kind, in the order they run."""

    __slots__ = ("name", "steps")

    def __init__(self, name: str, steps: dict[Kind, list[CheckedStep]]) -> None:
        self.name = name
        self.steps = steps


def check(profile: Profile, registry: Registry) -> CheckedProfile:
    """The profile's plugins with parsed parameters, in the order they run.

    Raises:
        ProfileError: the profile cannot run; lists all problems.
    """
    problems: list[Problem] = []
    steps: dict[Kind, list[CheckedStep]] = {}
    listed: dict[Kind, Sequence[Step]] = {
        Kind.PREPARE: profile.prepare,
        Kind.FILTER: profile.filter,
        Kind.SCORE: profile.score,
        Kind.PICK: (profile.pick,),
    }
    for kind in _KINDS:
        steps[kind] = _resolve(kind, listed[kind], registry, problems)
    _check_slots(steps, problems)
    _check_dependencies(steps, listed, problems)
    for kind in _KINDS:
        steps[kind] = _ordered(steps[kind], problems)
    _apply_units(steps, profile.share_tokens, problems)
    if problems:
        raise ProfileError(profile.name, problems)
    return CheckedProfile(profile.name, steps)


def check_together(profiles: Sequence[CheckedProfile]) -> list[CheckedStep]:
    """The prepare steps of all profiles of one workflow, each plugin once, in the order they run.

    Raises:
        ProfileError: two profiles cannot share their preparation; lists all problems.
    """
    problems: list[Problem] = []
    union: dict[str, CheckedStep] = {}
    for profile in profiles:
        for step in profile.steps[Kind.PREPARE]:
            shared = union.setdefault(step.spec.name, step)
            if shared.params != step.params:
                text = f"prepare plugin {step.spec.name!r} has different parameters in two profiles"
                problems.append(Problem("different_preparation", text, plugin=step.spec.name))
    steps = list(union.values())
    _check_slots({Kind.PREPARE: steps}, problems)
    ordered = _ordered(steps, problems)
    if problems:
        raise ProfileError(" + ".join(profile.name for profile in profiles), problems)
    return ordered


def _resolve(
    kind: Kind, listed: Sequence[Step], registry: Registry, problems: list[Problem]
) -> list[CheckedStep]:
    steps: list[CheckedStep] = []
    seen: set[str] = set()
    for step in listed:
        spec = registry.get(kind, step.plugin)
        if spec is None:
            names = registry.names(kind)
            close = difflib.get_close_matches(step.plugin, names, n=1)
            hint = f"did you mean {close[0]}?" if close else f"there are: {', '.join(names)}"
            text = f"no {kind.value} plugin is called {step.plugin!r} ({hint})"
            problems.append(Problem("unknown_plugin", text, plugin=step.plugin))
            continue
        if step.plugin in seen:
            text = f"{kind.value} plugin {step.plugin!r} is named twice"
            problems.append(Problem("duplicate_plugin", text, plugin=step.plugin))
            continue
        seen.add(step.plugin)
        try:
            params = spec.params.model_validate(step.params)
        except ValidationError as error:
            problems.extend(_parameter_problem(step.plugin, one) for one in error.errors())
            continue
        weight = step.weight if isinstance(step, ScoreStep) else 1.0
        steps.append(CheckedStep(spec, params, weight))
    return steps


def _parameter_problem(plugin: str, error: Any) -> Problem:  # noqa: ANN401 - pydantic's own error table
    name = ".".join(str(part) for part in error["loc"])
    if error["type"] == "extra_forbidden":
        return Problem("bad_parameter", f"{plugin!r} has no parameter {name!r}", plugin=plugin)
    text = str(error["msg"]).removeprefix("Value error, ")
    return Problem(
        "bad_parameter", f"{plugin!r}: {f'{name}: ' if name else ''}{text}", plugin=plugin
    )


def _check_slots(steps: dict[Kind, list[CheckedStep]], problems: list[Problem]) -> None:
    writers: dict[Slot[Any], str] = dict.fromkeys(WRITTEN_BY_WORKFLOW, "the workflow")
    for step in steps[Kind.PREPARE]:
        for slot in step.spec.writes:
            if slot in writers:
                text = f"slot {slot.name!r} is written by {writers[slot]!r} and {step.spec.name!r}"
                problems.append(
                    Problem("duplicate_writer", text, plugin=step.spec.name, slot=slot.name)
                )
            writers[slot] = step.spec.name
    for step in (step for kind in Kind for step in steps.get(kind, ())):
        for slot in step.reads:
            if slot not in writers:
                text = f"{step.spec.name!r} reads slot {slot.name!r}, which nobody writes"
                problems.append(
                    Problem("missing_writer", text, plugin=step.spec.name, slot=slot.name)
                )


def _check_dependencies(
    steps: dict[Kind, list[CheckedStep]],
    listed: dict[Kind, Sequence[Step]],
    problems: list[Problem],
) -> None:
    """Find plugins that are missing, and plugins of a later kind that should run earlier."""
    names = {step.plugin for kind in _KINDS for step in listed[kind]}
    for place, kind in enumerate(_KINDS):
        later = {step.plugin: each for each in _KINDS[place + 1 :] for step in listed[each]}
        sooner = {step.plugin for each in _KINDS[: place + 1] for step in listed[each]}
        for step in steps[kind]:
            name = step.spec.name
            for wanted in step.spec.depends:
                if wanted not in names:
                    text = f"{name!r} depends on {wanted!r}, which the profile does not have"
                    problems.append(Problem("missing_dependency", text, plugin=name))
            for first in step.spec.after:
                if first in later and first not in sooner:
                    text = (
                        f"{name!r} runs after {first!r}, but {kind.value} plugins run before "
                        f"{later[first].value} plugins"
                    )
                    problems.append(Problem("order_conflict", text, plugin=name))


def _ordered(steps: list[CheckedStep], problems: list[Problem]) -> list[CheckedStep]:
    """The steps after those whose slots they read or that `after` names; else as in the profile."""
    by_slots = _sorted(steps, _waits_for_slots)
    if isinstance(by_slots, _Stuck):
        names = ", ".join(repr(step.spec.name) for step in by_slots.steps)
        slots = sorted({slot.name for step in by_slots.steps for slot in step.spec.writes})
        text = f"{names} wait for one another's slots {', '.join(map(repr, slots))}"
        first = by_slots.steps[0].spec.name
        problems.append(Problem("cycle", text, plugin=first, slot=slots[0]))
        return steps
    ordered = _sorted(
        steps, lambda step, other: _waits_for_slots(step, other) or _waits_for(step, other)
    )
    if isinstance(ordered, _Stuck):
        names = ", ".join(repr(step.spec.name) for step in ordered.steps)
        text = f"there is no order in which {names} each run after those that they name or read"
        problems.append(Problem("order_conflict", text, plugin=ordered.steps[0].spec.name))
        return steps
    return ordered


def _waits_for_slots(step: CheckedStep, other: CheckedStep) -> bool:
    return any(slot in other.spec.writes for slot in step.reads)


def _waits_for(step: CheckedStep, other: CheckedStep) -> bool:
    return other.spec.name in step.spec.after


class _Stuck:
    """The steps of which each waits for another."""

    def __init__(self, steps: list[CheckedStep]) -> None:
        self.steps = steps


def _sorted(
    steps: Iterable[CheckedStep], waits: Callable[[CheckedStep, CheckedStep], bool]
) -> "list[CheckedStep] | _Stuck":
    waiting = list(steps)
    done: list[CheckedStep] = []
    while waiting:
        ready = next(
            (step for step in waiting if not any(waits(step, other) for other in waiting)), None
        )
        if ready is None:
            return _Stuck(waiting)
        waiting.remove(ready)
        done.append(ready)
    return done


def _apply_units(
    steps: dict[Kind, list[CheckedStep]], share_tokens: float | None, problems: list[Problem]
) -> None:
    """Turn weights into factors of one unit, in which lower is better."""
    units = {step.spec.unit for step in steps[Kind.SCORE]}
    if len(units) > 1 and share_tokens is None:
        parts = {
            unit: ", ".join(
                repr(step.spec.name) for step in steps[Kind.SCORE] if step.spec.unit is unit
            )
            for unit in Unit
        }
        text = (
            f"{parts[Unit.TOKENS]} score in tokens and {parts[Unit.SHARE]} in shares; state "
            "share_tokens, how many tokens of prefill a full share is worth"
        )
        names = [step.spec.name for step in steps[Kind.SCORE] if step.spec.unit is Unit.SHARE]
        problems.append(Problem("mixed_units", text, plugin=names[0]))
        return
    for step in steps[Kind.SCORE]:
        if step.spec.unit is Unit.SHARE:
            step.factor *= -1.0 if share_tokens is None else -share_tokens
    if not units or not steps[Kind.PICK]:
        return
    total = Unit.TOKENS if share_tokens is not None or Unit.TOKENS in units else Unit.SHARE
    picker = steps[Kind.PICK][0].spec
    if total not in picker.takes:
        taken = " or ".join(unit.value for unit in picker.takes)
        text = f"{picker.name!r} takes " + (
            f"scores in {taken}, not in {total.value}"
            if taken
            else "no scores, but the profile has some"
        )
        problems.append(Problem("wrong_unit", text, plugin=picker.name))
