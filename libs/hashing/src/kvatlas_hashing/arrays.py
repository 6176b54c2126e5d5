"""Converts numbers to what native hashing takes: one-dimensional, contiguous arrays of one dtype.

An array that already fits passes without a copy. Everything else is converted or refused: a float, a
negative or a too large number must never silently become another token.
"""

from array import array
from collections.abc import Sequence
from typing import TypeAlias, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

Tokens: TypeAlias = NDArray[np.integer] | Sequence[int]
Hashes: TypeAlias = NDArray[np.integer] | Sequence[int]
Number = TypeVar("Number", bound=np.generic)


def as_uint32(values: Tokens, name: str) -> NDArray[np.uint32]:
    """Return uint32[n]; TypeError: no integers; ValueError: not 1-D, or outside of u32."""
    if isinstance(values, np.ndarray) and values.dtype == np.uint32:
        return _contiguous(_one_dimensional(values, name), np.uint32)
    return _converted(values, name, np.dtype(np.uint32), "I").view(np.uint32)


def as_uint64(values: Hashes, name: str) -> NDArray[np.uint64]:
    """Return uint64[n]; TypeError: no integers; ValueError: not 1-D, or outside of u64."""
    if isinstance(values, np.ndarray) and values.dtype == np.uint64:
        return _contiguous(_one_dimensional(values, name), np.uint64)
    return _converted(values, name, np.dtype(np.uint64), "Q").view(np.uint64)


def _converted(
    values: Tokens | Hashes, name: str, dtype: np.dtype[np.unsignedinteger], typecode: str
) -> NDArray[np.unsignedinteger]:
    if isinstance(values, list | tuple):
        return _from_numbers(values, name, dtype, typecode)
    numbers = _one_dimensional(np.asarray(values), name)
    if numbers.dtype.kind not in "iu":
        raise TypeError(f"{name} must be integers, not {numbers.dtype}")
    if numbers.size:
        low, high = int(numbers.min()), int(numbers.max())
        if low < 0 or high > np.iinfo(dtype).max:
            raise ValueError(_range_text(name, dtype, low if low < 0 else high))
    return np.ascontiguousarray(numbers, dtype)


def _from_numbers(
    values: Sequence[int], name: str, dtype: np.dtype[np.unsignedinteger], typecode: str
) -> NDArray[np.unsignedinteger]:
    """Convert through `array`: twice as fast as numpy on lists, and it takes integers only."""
    try:
        return np.frombuffer(array(typecode, values), dtype)
    except OverflowError as error:
        wrong = next(value for value in values if not 0 <= value <= np.iinfo(dtype).max)
        raise ValueError(_range_text(name, dtype, wrong)) from error
    except TypeError as error:
        raise TypeError(f"{name} must be one sequence of integers: {error}") from error


def _contiguous(values: NDArray[np.integer], dtype: type[Number]) -> NDArray[Number]:
    """Return `values` if they are contiguous and aligned, else a copy."""
    if values.flags.c_contiguous and values.flags.aligned:
        return cast("NDArray[Number]", values)
    return np.array(values, dtype)


def _one_dimensional(values: NDArray[Number], name: str) -> NDArray[Number]:
    if values.ndim != 1:
        raise ValueError(f"{name} must have one dimension, not {values.ndim}")
    return values


def _range_text(name: str, dtype: np.dtype[np.unsignedinteger], wrong: int) -> str:
    return f"{name} must be {dtype.name}: {wrong} is outside of 0..{np.iinfo(dtype).max}"
