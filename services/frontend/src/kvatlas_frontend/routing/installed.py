"""Finds the plugins that other distributions bring: entry points of one group.

An entry point gives a `PluginSpec`, or a sequence of them.
"""

from collections.abc import Iterable, Sequence
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final, cast

from kvatlas_frontend.routing.plugin import PluginSpec
from kvatlas_frontend.routing.plugins import built_in
from kvatlas_frontend.routing.profile import Problem, ProfileError
from kvatlas_frontend.routing.registry import Registry

GROUP: Final = "kvatlas.frontend.plugins"


def all_plugins(points: Iterable[EntryPoint] | None = None) -> Registry:
    """The built-in plugins and those of entry points (None: of all installed distributions).

    Raises:
        ProfileError: `plugin_not_loaded`, once for each entry point that cannot be used; the text
            names its distribution.
    """
    registry = built_in()
    problems: list[Problem] = []
    for point in entry_points(group=GROUP) if points is None else points:
        try:
            for spec in _specs(point):
                registry.register(spec)
        except Exception as error:  # noqa: BLE001 - somebody else's module may raise anything
            text = f"entry point {point.name!r} of {_origin(point)}: {_said(error)}"
            problems.append(Problem("plugin_not_loaded", text, plugin=point.name))
    if problems:
        raise ProfileError("plugins", problems)
    return registry


def _specs(point: EntryPoint) -> Sequence[PluginSpec[Any]]:
    value: object = point.load()
    found = cast("Sequence[object]", value) if isinstance(value, Sequence) else [value]
    specs: list[PluginSpec[Any]] = []
    for spec in found:
        if not isinstance(spec, PluginSpec):
            raise TypeError(f"{point.value} is no PluginSpec and no sequence of them")
        specs.append(cast("PluginSpec[Any]", spec))
    return specs


def _origin(point: EntryPoint) -> str:
    """The distribution that an entry point belongs to."""
    if point.dist is None:
        return "an unknown distribution"
    return f"distribution {point.dist.name} {point.dist.version}"


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"
