"""A request's routing context: a table of typed slots, which plugins write and read.

Plugins never call one another. Each declares the slots that it reads and writes, so a profile can
be checked before the first request.
"""

from typing import Any, Generic, TypeVar, cast

T = TypeVar("T")


class Slot(Generic[T]):
    """A typed key of the context. Its identity is the object; its name is for messages."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"Slot({self.name})"


class RoutingContext:
    """One request's slots. It lives as long as the request; retries choose again from it."""

    __slots__ = ("_values",)

    def __init__(self) -> None:
        self._values: dict[Slot[Any], Any] = {}

    def __getitem__(self, slot: Slot[T]) -> T:
        return cast("T", self._values[slot])

    def __setitem__(self, slot: Slot[T], value: T) -> None:
        self._values[slot] = value

    def __contains__(self, slot: Slot[Any]) -> bool:
        return slot in self._values

    def get(self, slot: Slot[T]) -> T | None:
        """The slot's value, or None if nothing wrote it."""
        return cast("T | None", self._values.get(slot))
