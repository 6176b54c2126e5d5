"""Everything that the author of a plugin imports; see `docs/write-a-policy.md`."""

from kvatlas_chassis import Settings
from kvatlas_frontend.fleet.columns import Columns
from kvatlas_frontend.fleet.labels import NONE, LabelColumn
from kvatlas_frontend.fleet.table import Fleet
from kvatlas_frontend.routing.context import RoutingContext, Slot
from kvatlas_frontend.routing.plugin import (
    Filter,
    Follower,
    Kind,
    Mask,
    NoParams,
    Picker,
    PluginSpec,
    Preparer,
    Scorer,
    Services,
    Unit,
    Values,
)
from kvatlas_frontend.routing.slots import (
    CHUNK_HASHES,
    HASH_KEY,
    MATCHES,
    PARENT_SESSION,
    REQUEST,
    SESSION,
    TENANT,
    TOKEN_ESTIMATE,
    TOKENS,
)

__all__ = [
    "CHUNK_HASHES",
    "HASH_KEY",
    "MATCHES",
    "NONE",
    "PARENT_SESSION",
    "REQUEST",
    "SESSION",
    "TENANT",
    "TOKENS",
    "TOKEN_ESTIMATE",
    "Columns",
    "Filter",
    "Fleet",
    "Follower",
    "Kind",
    "LabelColumn",
    "Mask",
    "NoParams",
    "Picker",
    "PluginSpec",
    "Preparer",
    "RoutingContext",
    "Scorer",
    "Services",
    "Settings",
    "Slot",
    "Unit",
    "Values",
]
