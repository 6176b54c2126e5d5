"""The specification of the indexed group; `libs/engines/rust/src/cache_groups.rs` explains it."""

from kvatlas_engines import RefusalReason
from tests.reference.engines.fields import NotIndexable

_FULL_ATTENTION = frozenset({"full_attention", "mla_attention", "sink_full_attention"})
"""Kinds whose blocks depend on the whole prefix and hold all of it."""


class GroupFilter:
    """Remembers the indexed group, since removals name a group but no kind."""

    def __init__(self) -> None:
        self._main: int | None = None
        self._by_kind = False

    def admit_store(self, group: int | None, kind: str | None) -> bool:
        """Refuse a store of another group; True if what was indexed before was another group.

        That happens only where groups without a kind came before the first one with a kind.

        Raises:
            NotIndexable: the group is not the indexed one.
        """
        if kind is not None and kind not in _FULL_ATTENTION:
            raise NotIndexable(RefusalReason.OTHER_GROUP, f"a {kind[:64]} group")
        if group is None:
            return False
        if self._main is None or (kind is not None and not self._by_kind):
            replaced = self._main is not None and self._main != group
            self._main = group
            self._by_kind = kind is not None
            return replaced
        self._refuse_other(group)
        return False

    def admit_hash_only(self, group: int | None) -> None:
        """Refuse a removal or a token-less store of another group.

        Raises:
            NotIndexable: the group is not the indexed one.
        """
        if group is not None and self._main is not None:
            self._refuse_other(group)

    def _refuse_other(self, group: int) -> None:
        if group != self._main:
            raise NotIndexable(RefusalReason.OTHER_GROUP, f"group {group}; {self._main} is indexed")
