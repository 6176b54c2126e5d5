"""Arguments of both clients, checked once."""

from collections.abc import Sequence
from dataclasses import dataclass
from random import SystemRandom

from kvatlas_client.query import UINT32_MAX
from kvatlas_client.types import CellTerms
from kvatlas_native import Finder

DEADLINE_MS = 50.0
STATUS_TIMEOUT_S = 2.0


@dataclass(frozen=True, slots=True)
class Settings:
    """The replicas, the terms of their cell, and the deadline."""

    replicas: tuple[str, ...]
    terms: CellTerms
    deadline_s: float


def make_settings(
    replicas: Sequence[str],
    *,
    model: str,
    block_size: int,
    hash_contract: str,
    deadline_ms: float,
) -> Settings:
    """Return checked settings. ValueError: an argument is wrong."""
    if isinstance(replicas, str) or not replicas:
        raise ValueError("replicas must be a list of one or more addresses, host:port")
    if len(set(replicas)) != len(replicas):
        raise ValueError(f"replicas are named twice: {', '.join(replicas)}")
    for replica in replicas:
        host, _, port = replica.rpartition(":")
        if not host or not port.isdecimal():
            raise ValueError(f"a replica's address is host:port, not '{replica}'")
    if not 0 <= block_size <= UINT32_MAX:
        raise ValueError(f"block_size must be a number of tokens, or 0, not {block_size}")
    terms = CellTerms(model, block_size, hash_contract)
    return Settings(tuple(replicas), terms, deadline_in_s(deadline_ms))


def deadline_in_s(deadline_ms: float) -> float:
    """Return the deadline in seconds. ValueError: not above 0."""
    if not deadline_ms > 0:
        raise ValueError(f"deadline_ms must be above 0, not {deadline_ms}")
    return deadline_ms / 1e3


def make_finder(settings: Settings) -> Finder:
    """Return a finder over the replicas; it connects when first used."""
    return Finder(
        settings.replicas,
        model=settings.terms.model,
        block_size=settings.terms.block_size,
        hash_contract=settings.terms.hash_contract,
        seed=make_seed(),
    )


def make_seed() -> int:
    """Return a seed, so that clients differ in the replica that they ask first."""
    return SystemRandom().getrandbits(64)
