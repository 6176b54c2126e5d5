"""The registry of plugins, by kind and name. Importing a module registers nothing by itself."""

from collections.abc import Iterable
from typing import Any

from kvatlas_frontend.routing.plugin import Kind, PluginSpec


class Registry:
    """Plugin specs by kind and name."""

    def __init__(self, specs: Iterable[PluginSpec[Any]] = ()) -> None:
        self._specs: dict[tuple[Kind, str], PluginSpec[Any]] = {}
        for spec in specs:
            self.register(spec)

    def register(self, spec: PluginSpec[Any]) -> None:
        """Add a plugin.

        Raises:
            ValueError: the name is taken.
        """
        place = (spec.kind, spec.name)
        if place in self._specs:
            raise ValueError(f"a {spec.kind.value} plugin called {spec.name!r} is registered")
        self._specs[place] = spec

    def get(self, kind: Kind, name: str) -> PluginSpec[Any] | None:
        """The plugin, or None."""
        return self._specs.get((kind, name))

    def names(self, kind: Kind) -> list[str]:
        """All names of one kind, sorted."""
        return sorted(name for known, name in self._specs if known is kind)
