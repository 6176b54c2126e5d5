"""Checks a profile and orders its plugins, before the first request.

Problem codes: `unknown_plugin`, `bad_parameter`, `duplicate_plugin`, `duplicate_writer`,
`missing_writer`, `cycle`. All problems are reported at once, each with its plugin and slot.
"""

import difflib
from collections.abc import Sequence
from typing import Any

from pydantic import ValidationError

from kvatlas_chassis import Settings
from kvatlas_frontend.routing.context import Slot
from kvatlas_frontend.routing.plugin import Kind, PluginSpec
from kvatlas_frontend.routing.profile import Problem, Profile, ProfileError, Step
from kvatlas_frontend.routing.registry import Registry
from kvatlas_frontend.routing.slots import WRITTEN_BY_WORKFLOW


class CheckedStep:
    """A plugin of a profile with its parameters parsed."""

    __slots__ = ("params", "spec")

    def __init__(self, spec: PluginSpec[Any], params: Settings) -> None:
        self.spec = spec
        self.params = params


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
    for kind, listed in (
        (Kind.PREPARE, profile.prepare),
        (Kind.FILTER, profile.filter),
        (Kind.SCORE, profile.score),
        (Kind.PICK, (profile.pick,)),
    ):
        steps[kind] = _resolve(kind, listed, registry, problems)
    _check_slots(steps, problems)
    steps[Kind.PREPARE] = _ordered(steps[Kind.PREPARE], problems)
    if problems:
        raise ProfileError(profile.name, problems)
    return CheckedProfile(profile.name, steps)


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
        steps.append(CheckedStep(spec, params))
    return steps


def _parameter_problem(plugin: str, error: Any) -> Problem:  # noqa: ANN401 - pydantic's own error table
    name = ".".join(str(part) for part in error["loc"])
    if error["type"] == "extra_forbidden":
        return Problem("bad_parameter", f"{plugin!r} has no parameter {name!r}", plugin=plugin)
    return Problem("bad_parameter", f"{plugin!r}: {name}: {error['msg']}", plugin=plugin)


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
    for step in (step for kind in Kind for step in steps[kind]):
        for slot in step.spec.reads:
            if slot not in writers:
                text = f"{step.spec.name!r} reads slot {slot.name!r}, which nobody writes"
                problems.append(
                    Problem("missing_writer", text, plugin=step.spec.name, slot=slot.name)
                )


def _ordered(steps: list[CheckedStep], problems: list[Problem]) -> list[CheckedStep]:
    """The steps with writers before readers; otherwise in the profile's order."""
    written_later = {slot for step in steps for slot in step.spec.writes}
    waiting = list(steps)
    ordered: list[CheckedStep] = []
    while waiting:
        ready = next(
            (step for step in waiting if not written_later.intersection(step.spec.reads)), None
        )
        if ready is None:
            names = ", ".join(repr(step.spec.name) for step in waiting)
            slots = sorted({slot.name for step in waiting for slot in step.spec.writes})
            text = f"{names} wait for one another's slots {', '.join(map(repr, slots))}"
            problems.append(Problem("cycle", text, plugin=waiting[0].spec.name, slot=slots[0]))
            break
        waiting.remove(ready)
        written_later.difference_update(ready.spec.writes)
        ordered.append(ready)
    return ordered
