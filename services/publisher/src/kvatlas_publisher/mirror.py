"""The native mirror of an engine's cache, with its answers in the terms of `kvatlas_events`.

Payloads go in as they came off the socket and records come out; no block becomes a Python object on
the way. `libs/mirror` has the rules.
"""

from collections import Counter
from collections.abc import Mapping

from kvatlas_engines import RefusalReason
from kvatlas_events import Hashes, Tier, TierDigest
from kvatlas_native import EngineMirror

_NUMBERS = {tier: number for number, tier in enumerate(Tier)}
"""The native mirror numbers tiers from near to far."""


class Mirror(EngineMirror):
    """One engine rank's cache. Not thread-safe: nothing may change it while a thread reads it."""

    @property
    def unindexable(self) -> Counter[RefusalReason]:
        """The number of blocks refused, by reason; an event that names no blocks counts as one."""
        refused = self.refused_blocks()
        return Counter({RefusalReason(name): blocks for name, blocks in refused.items()})

    def digests(self) -> tuple[TierDigest, ...]:
        """Return the digests of the published set, by tier; other tiers than the device only if used.

        The device's digest is there even for an empty mirror, so that receivers can compare it.
        """
        published = zip(Tier, self.published_digests(), strict=True)
        return tuple(
            TierDigest(tier, blocks, digest)
            for tier, (blocks, digest) in published
            if blocks or tier is Tier.DEVICE
        )

    def published_blocks(self, tier: Tier) -> int:
        """Return the number of sequence hashes published on a tier."""
        return self.published_digests()[_NUMBERS[tier]][0]

    def snapshot(self) -> Mapping[Tier, Hashes]:
        """Copy the published set, by tier."""
        return {
            tier: self.published_hashes(number)
            for tier, number in _NUMBERS.items()
            if self.published_blocks(tier)
        }
