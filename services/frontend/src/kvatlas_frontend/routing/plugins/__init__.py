"""The plugins that come with kvatlas."""

from typing import Any

from kvatlas_frontend.routing.plugin import PluginSpec
from kvatlas_frontend.routing.plugins import filters, picks, prepares, scores
from kvatlas_frontend.routing.registry import Registry


def built_in() -> Registry:
    """A registry of all of them; a caller may add its own."""
    specs: tuple[PluginSpec[Any], ...] = (
        *prepares.SPECS,
        *filters.SPECS,
        *scores.SPECS,
        *picks.SPECS,
    )
    return Registry(specs)
