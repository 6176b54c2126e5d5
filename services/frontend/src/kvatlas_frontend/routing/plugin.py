"""The four kinds of plugin, and how one is described to the registry."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Generic, Protocol, TypeAlias, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from kvatlas_chassis import Settings
from kvatlas_frontend.api.reasons import Reason
from kvatlas_frontend.fleet.table import Fleet
from kvatlas_frontend.routing.context import RoutingContext, Slot
from kvatlas_frontend.routing.interfaces import MatchFinder, TokenSource

P = TypeVar("P", bound=Settings)

Mask: TypeAlias = NDArray[np.bool_]
"""One flag a row: which workers are candidates."""

Values: TypeAlias = NDArray[np.floating[Any]]
"""One number a row."""


class Preparer(Protocol):
    """Writes slots. May wait for threads or an indexer, within its own deadline."""

    async def prepare(self, context: RoutingContext, /) -> None:
        """Write the slots that this plugin declares; a failure becomes a slot's value."""
        ...


@runtime_checkable
class ImmediatePreparer(Protocol):
    """A `Preparer` that for some requests has nothing to wait for; those are routed without a task."""

    def prepare_now(self, context: RoutingContext, /) -> float | None:
        """Write the declared slots and return the time it took, in seconds; None: `prepare` has to."""
        ...


class Filter(Protocol):
    """Removes workers: clears entries of `candidates` in place."""

    def filter(self, context: RoutingContext, candidates: Mask, /) -> None:
        """Clear the entries of workers that cannot serve this request."""
        ...


class Scorer(Protocol):
    """Values workers in the unit that its spec states. The selector applies weights and adds up."""

    def score(self, context: RoutingContext, candidates: Mask, /) -> Values:
        """Each worker's value, by row; those of rows that are no candidates do not matter.

        The caller only reads it, so a column may be returned as it is.
        """
        ...


class Picker(Protocol):
    """Chooses one of the `candidates`; there is at least one.

    A retry picks again among the workers that were not tried, instead of taking the next of a list
    that was made before: by then, load and circuit breakers are different.
    """

    reason: Reason  # reported where the policy asks for no matches

    def pick(
        self,
        context: RoutingContext,
        candidates: Mask,
        costs: Values,
        /,
    ) -> int:
        """The chosen row. In `costs` lower is better: scores come with their sign turned."""
        ...


@runtime_checkable
class Follower(Protocol):
    """A filter, scorer or picker that also learns of each choice, before anything is awaited."""

    def picked(self, context: RoutingContext, row: int, /) -> None:
        """Learn that the request goes to the worker in `row`."""
        ...


Plugin: TypeAlias = Preparer | Filter | Scorer | Picker


class Kind(Enum):
    """The stage of routing that a plugin belongs to."""

    PREPARE = "prepare"
    FILTER = "filter"
    SCORE = "score"
    PICK = "pick"


class Unit(Enum):
    """The unit of a scorer's values. It also says which end is better."""

    TOKENS = "tokens"  # a cost in tokens of prefill; lower is better
    SHARE = "share"  # a score in [0, 1]; higher is better


@dataclass(frozen=True, slots=True)
class Services:
    """The objects that plugins are built from, shared by all.

    Attributes:
        process: number of this process among the `processes` of the frontend. Rotations and tie
            breaks begin elsewhere in each, so that they do not move in step.
    """

    fleet: Fleet
    tokens: TokenSource
    matches: MatchFinder
    block_size: int
    deadline_ms: float
    now_s: Callable[[], float]
    rng: random.Random = field(default_factory=random.Random)
    process: int = 0
    processes: int = 1


class NoParams(Settings):
    """The parameters of a plugin that has none."""


Slots: TypeAlias = tuple[Slot[Any], ...]


@dataclass(frozen=True, slots=True)
class PluginSpec(Generic[P]):
    """A plugin's entry in the registry: its name in profiles, how to build it, what it needs.

    Attributes:
        name: its name in profiles, unique within its kind.
        params: its parameters; `NoParams` if it has none.
        build: makes the plugin, once per selector.
        reads: slots that it reads, or a function that tells them from the parameters.
        writes: slots that it writes; only prepare plugins write.
        stage: label of its time in `kvatlas_frontend_routing_seconds`.
        unit: unit of a scorer's values; every scorer states one.
        takes: units whose sum a picker can take; none: it ignores scores.
        depends: names of plugins that the profile must have too.
        after: names of plugins that run before this one, if the profile has them.

    Raises:
        ValueError: a scorer without a unit, or a plugin that writes outside of preparation.
    """

    name: str
    kind: Kind
    params: type[P]
    build: Callable[[Services, P], Plugin]
    reads: Slots | Callable[[P], Slots] = ()
    writes: Slots = ()
    stage: str | None = None
    unit: Unit | None = None
    takes: tuple[Unit, ...] = ()
    depends: tuple[str, ...] = ()
    after: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if (self.unit is not None) != (self.kind is Kind.SCORE):
            raise ValueError(
                f"{self.name!r}: a scorer states its unit, and no other plugin has one"
            )
        if self.takes and self.kind is not Kind.PICK:
            raise ValueError(f"{self.name!r}: only a picker takes scores")
        if self.writes and self.kind is not Kind.PREPARE:
            raise ValueError(f"{self.name!r}: only a prepare plugin writes slots")

    def slots_read(self, params: P) -> Slots:
        """The slots that it reads with these parameters."""
        return self.reads(params) if callable(self.reads) else self.reads
