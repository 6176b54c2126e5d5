"""Text facts of workers as columns of small integers, so that filters compare whole columns.

Memory is bounded by the fleet: a column exists only for a label that a plugin asked for, and a value
that no worker has any more gives its code to the next one.
"""

from collections.abc import Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

NONE: Final = 0
"""The code of a worker that does not have the label."""


class LabelColumn:
    """One label: `codes` has each row's value as a code, int32[rows]; `NONE`: it has none.

    Growing replaces `codes`, so do not keep it across an `await`.
    """

    def __init__(self, rows: int) -> None:
        self.codes: NDArray[np.int32] = np.zeros(rows, dtype=np.int32)
        self._by_value: dict[str, int] = {}
        self._values: dict[int, str] = {}
        self._uses: list[int] = [0]  # by code
        self._free: list[int] = []

    def code(self, value: str) -> int:
        """The code of a value, valid for ever: a plugin asks once, when it is built."""
        code = self._code(value)
        self._uses[code] += 1
        return code

    def value(self, row: int) -> str:
        """The row's value; "" if it has none."""
        return self._values.get(int(self.codes[row]), "")

    def put(self, row: int, value: str) -> None:
        """Set a row's value; "" for none."""
        before = int(self.codes[row])
        if self._values.get(before, "") == value:
            return
        code = self._code(value) if value else NONE
        self._uses[code] += 1
        self.codes[row] = code
        self._uses[before] -= 1
        if before != NONE and not self._uses[before]:
            del self._by_value[self._values.pop(before)]
            self._free.append(before)

    def grow(self, more: int) -> None:
        """Add rows that have no value."""
        self.codes = np.concatenate([self.codes, np.zeros(more, dtype=np.int32)])

    def _code(self, value: str) -> int:
        code = self._by_value.get(value)
        if code is None:
            if self._free:
                code = self._free.pop()
            else:
                code = len(self._uses)
                self._uses.append(0)
            self._by_value[value] = code
            self._values[code] = value
        return code


class LabelColumns:
    """The labels of all workers, with a column for each label that a plugin asked for."""

    def __init__(self, rows: int) -> None:
        self._rows: dict[int, Mapping[str, str]] = {}
        self._size = rows
        self._columns: dict[str, LabelColumn] = {}

    def __getitem__(self, name: str) -> LabelColumn:
        """The column of a label; it exists from the first time on that it is asked for."""
        column = self._columns.get(name)
        if column is None:
            column = self._columns[name] = LabelColumn(self._size)
            for row, labels in self._rows.items():
                column.put(row, labels.get(name, ""))
        return column

    def put(self, row: int, labels: Mapping[str, str]) -> None:
        """Set a row's labels."""
        self._rows[row] = labels
        for name, column in self._columns.items():
            column.put(row, labels.get(name, ""))

    def clear(self, row: int) -> None:
        """Forget a row's labels."""
        if self._rows.pop(row, None) is not None:
            for column in self._columns.values():
                column.put(row, "")

    def grow(self, more: int) -> None:
        """Add rows without labels."""
        self._size += more
        for column in self._columns.values():
            column.grow(more)
