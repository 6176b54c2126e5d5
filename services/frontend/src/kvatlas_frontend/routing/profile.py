"""A routing profile: YAML that names plugins and their parameters. `check` validates it.

```yaml
name: kv-aware
prepare: [tokens, chunk-hashes, {matches: {limit: 64}}]
filter: [available, serves-model]
score: [{prefill: {weight: 2, miss_weight: 1.0}}, load]
pick: lowest-cost
```
The order of `prepare` does not matter: a plugin runs after those whose slots it reads. Each entry of
`score` may have a `weight`, 1 by default. `share_tokens` says how many tokens of prefill a full share
is worth; a profile that adds shares to tokens must state it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Final, cast

import yaml
from pydantic import Field, ValidationError, field_validator

from kvatlas_chassis import Settings, SettingsError

BUILT_IN: Final = (
    "kv-aware",
    "least-loaded",
    "least-requests",
    "round-robin",
    "random",
    "session-affinity",
    "consistent-hashing",
    "dynamo-cost",
    "aibrix-prefix-cache",
)


class Step(Settings):
    """A plugin's name and its parameters, as written."""

    plugin: str
    params: dict[str, Any] = Field(default_factory=dict[str, Any])


class ScoreStep(Step):
    """A scorer's entry: its values are multiplied by `weight` before they are added up."""

    weight: float = Field(default=1.0, ge=0, allow_inf_nan=False)


class Profile(Settings):
    """A profile as written; `check` finds out whether it can run."""

    name: str = Field(min_length=1)
    prepare: tuple[Step, ...] = ()
    filter: tuple[Step, ...] = ()
    score: tuple[ScoreStep, ...] = ()
    pick: Step
    share_tokens: float | None = Field(default=None, gt=0, allow_inf_nan=False)

    @field_validator("prepare", "filter", mode="before")
    @classmethod
    def _steps(cls, value: object) -> object:
        if isinstance(value, (list, tuple)):
            return [_step(item) for item in cast("Sequence[object]", value)]
        return value

    @field_validator("score", mode="before")
    @classmethod
    def _score_steps(cls, value: object) -> object:
        if isinstance(value, (list, tuple)):
            return [_score_step(item) for item in cast("Sequence[object]", value)]
        return value

    @field_validator("pick", mode="before")
    @classmethod
    def _one_step(cls, value: object) -> object:
        return _step(value)


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong with a profile."""

    code: str  # one of those listed in `check`
    text: str
    plugin: str | None = None
    slot: str | None = None


class ProfileError(SettingsError):
    """A profile cannot run; lists everything that is wrong with it."""

    def __init__(self, name: str, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        text = "; ".join(f"[{problem.code}] {problem.text}" for problem in problems)
        super().__init__(f"--policy {name}: {text}")


def load_profile(policy: str) -> Profile:
    """A built-in profile by its name, or one from a YAML file.

    Raises:
        ProfileError: there is no such policy, or it has another shape.
    """
    try:
        if policy in BUILT_IN:
            text = (
                resources.files("kvatlas_frontend.routing") / "policies" / f"{policy}.yaml"
            ).read_text()
        else:
            text = Path(policy).read_text()
        document: object = yaml.safe_load(text)
    except OSError as error:
        known = ", ".join(BUILT_IN)
        problem = Problem("unreadable", f"{error.strerror}; built-in policies: {known}")
        raise ProfileError(policy, [problem]) from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ProfileError(policy, [Problem("not_yaml", " ".join(str(error).split()))]) from None
    try:
        return Profile.model_validate(document)
    except ValidationError as error:
        raise ProfileError(policy, [_shape_problem(one) for one in error.errors()]) from None


def _step(item: object) -> dict[str, object]:
    """A plugin's entry, written as `name` or as `{name: {parameter: value}}`."""
    if isinstance(item, str):
        return {"plugin": item}
    if isinstance(item, dict):
        table = cast("dict[object, object]", item)
        if len(table) == 1:
            ((name, params),) = table.items()
            return {"plugin": name, "params": {} if params is None else params}
    raise ValueError("a plugin is its name, or {name: {parameter: value}}")


def _score_step(item: object) -> object:
    """A scorer's entry: `weight` stands among the parameters, but is the step's."""
    step = _step(item)
    params = step.get("params")
    if isinstance(params, dict) and "weight" in params:
        others = dict(cast("dict[object, object]", params))
        return {"plugin": step["plugin"], "weight": others.pop("weight"), "params": others}
    return step


def _shape_problem(error: Any) -> Problem:  # noqa: ANN401 - pydantic's own error table
    place = ".".join(str(part) for part in error["loc"]) or "profile"
    return Problem("bad_shape", f"{place}: {str(error['msg']).removeprefix('Value error, ')}")
