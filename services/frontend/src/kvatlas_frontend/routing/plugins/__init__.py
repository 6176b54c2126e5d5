"""The plugins that come with kvatlas."""

from typing import Any

from kvatlas_frontend.routing.plugin import PluginSpec
from kvatlas_frontend.routing.plugins import filters, pickers, preparers, scorers
from kvatlas_frontend.routing.registry import Registry


def built_in() -> Registry:
    """A registry of all built-in plugins; a caller may add its own."""
    specs: tuple[PluginSpec[Any], ...] = (
        *preparers.SPECS,
        *filters.SPECS,
        *scorers.SPECS,
        *pickers.SPECS,
    )
    return Registry(specs)
