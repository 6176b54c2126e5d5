"""The plugins that come with kvatlas."""

from typing import Any

from kvatlas_frontend.routing.plugin import PluginSpec
from kvatlas_frontend.routing.plugins import (
    filters,
    pickers,
    preparers,
    random_pickers,
    request_keys,
    scorers,
    share_scorers,
    sticky_pickers,
)
from kvatlas_frontend.routing.registry import Registry


def built_in() -> Registry:
    """A registry of all built-in plugins; a caller may add its own."""
    specs: tuple[PluginSpec[Any], ...] = (
        *preparers.SPECS,
        *request_keys.SPECS,
        *filters.SPECS,
        *scorers.SPECS,
        *share_scorers.SPECS,
        *pickers.SPECS,
        *random_pickers.SPECS,
        *sticky_pickers.SPECS,
    )
    return Registry(specs)
