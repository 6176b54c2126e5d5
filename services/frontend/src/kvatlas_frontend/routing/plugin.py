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
from kvatlas_frontend.routing.ports import MatchFinder, TokenSource

P = TypeVar("P", bound=Settings)


class Prepare(Protocol):
    """Writes slots; may wait for others (threads, an indexer), within bounds of its own."""

    async def prepare(self, context: RoutingContext, /) -> None:
        """Write what this plugin declares; failures become values of its slots."""
        ...


class Filter(Protocol):
    """Takes workers out: clears entries of `candidates` (bool[rows]) in place."""

    def filter(self, context: RoutingContext, candidates: NDArray[np.bool_], /) -> None:
        """Clear the entries of workers that cannot serve this request."""
        ...


class Score(Protocol):
    """Adds to `costs` (float64[rows], in tokens of prefill) in place; lower is better."""

    def score(self, context: RoutingContext, costs: NDArray[np.float64], /) -> None:
        """Add what each worker would cost."""
        ...


class Pick(Protocol):
    """Chooses a row of `candidates`, of which there is at least one."""

    reason: Reason  # where no match was asked for

    def pick(
        self,
        context: RoutingContext,
        candidates: NDArray[np.bool_],
        costs: NDArray[np.float64],
        /,
    ) -> int:
        """The chosen row."""
        ...


Plugin: TypeAlias = Prepare | Filter | Score | Pick


class Kind(Enum):
    """The stage a plugin belongs to."""

    PREPARE = "prepare"
    FILTER = "filter"
    SCORE = "score"
    PICK = "pick"


@dataclass(frozen=True, slots=True)
class Services:
    """What plugins are built from. They share it; nobody reaches past it."""

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
    """A plugin as the registry knows it: its name in profiles, its slots, how it is built."""

    name: str
    kind: Kind
    params: type[P]
    build: Callable[[Services, P], Plugin]
    reads: tuple[Slot[Any], ...] = ()
    writes: tuple[Slot[Any], ...] = ()
    stage: str | None = None  # under which its time is counted
