"""The four kinds of plugin, and how one is described to the registry."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from kvatlas_chassis import Settings
from kvatlas_frontend.api.reasons import Reason
from kvatlas_frontend.fleet.table import Fleet
from kvatlas_frontend.routing.context import RoutingContext, Slot
from kvatlas_frontend.routing.interfaces import MatchFinder, TokenSource

P = TypeVar("P", bound=Settings)


class Preparer(Protocol):
    """Writes slots. May wait for threads or an indexer, within its own deadline."""

    async def prepare(self, context: RoutingContext, /) -> None:
        """Write the slots that this plugin declares; a failure becomes a slot's value."""
        ...


class Filter(Protocol):
    """Removes workers: clears entries of `candidates` (bool[rows]) in place."""

    def filter(self, context: RoutingContext, candidates: NDArray[np.bool_], /) -> None:
        """Clear the entries of workers that cannot serve this request."""
        ...


class Scorer(Protocol):
    """Adds to `costs` (float64[rows], in tokens of prefill) in place; lower is better."""

    def score(self, context: RoutingContext, costs: NDArray[np.float64], /) -> None:
        """Add each worker's cost."""
        ...


class Picker(Protocol):
    """Chooses one of the `candidates`; there is at least one."""

    reason: Reason  # reported where the policy asks for no matches

    def pick(
        self,
        context: RoutingContext,
        candidates: NDArray[np.bool_],
        costs: NDArray[np.float64],
        /,
    ) -> int:
        """The chosen row."""
        ...


Plugin: TypeAlias = Preparer | Filter | Scorer | Picker


class Kind(Enum):
    """The stage of routing that a plugin belongs to."""

    PREPARE = "prepare"
    FILTER = "filter"
    SCORE = "score"
    PICK = "pick"


@dataclass(frozen=True, slots=True)
class Services:
    """The objects that plugins are built from, shared by all."""

    fleet: Fleet
    tokens: TokenSource
    matches: MatchFinder
    block_size: int
    deadline_ms: float
    now_s: Callable[[], float]


class NoParams(Settings):
    """The parameters of a plugin that has none."""


@dataclass(frozen=True, slots=True)
class PluginSpec(Generic[P]):
    """A plugin's entry in the registry: its name in profiles, its slots, how to build it."""

    name: str
    kind: Kind
    params: type[P]
    build: Callable[[Services, P], Plugin]
    reads: tuple[Slot[Any], ...] = ()
    writes: tuple[Slot[Any], ...] = ()
    stage: str | None = None  # label of its time in kvatlas_frontend_routing_seconds
