"""Command-line flags of the demo and the benchmarks: the parser, types of values, one-value flags."""

import argparse
import math
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from kvatlas_chassis import SettingsError


class Parser(argparse.ArgumentParser):
    """Raises SettingsError, one line, for wrong flags."""

    def error(self, message: str) -> NoReturn:
        """Raise it."""
        raise SettingsError(f"{self.prog}: {message} (--help lists the flags)")


def add_value(
    add: Callable[..., object],
    name: str,
    kind: Callable[[str], object],
    metavar: str,
    text: str,
    *,
    default: object = None,
) -> None:
    """Add a flag with one value; its help ends with the default, if there is one."""
    shown = text if default is None else f"{text} (default: %(default)s)"
    add(name, type=kind, metavar=metavar, help=shown, default=default)


def count(text: str) -> int:
    """A whole number from 1."""
    if not text.isdecimal() or not 0 < int(text) < 1 << 31:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1")
    return int(text)


def positive(text: str) -> float:
    """A finite number above 0."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return value


def existing_file(text: str) -> Path:
    """The path of a file that exists."""
    path = Path(text)
    if not path.is_file():
        raise argparse.ArgumentTypeError(f"no file {text!r}")
    return path
