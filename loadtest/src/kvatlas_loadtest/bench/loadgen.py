"""Finds the native load generator: `loadtest/rust`, built by `make loadgen`."""

import shutil
from pathlib import Path

from kvatlas_chassis import FatalError

_PROGRAM = "kvatlas-loadgen"


def find_program(*, quick: bool) -> Path:
    """The load generator's path: on PATH, or in the checkout's `target`.

    Args:
        quick: accept an unoptimized build; the newest one is taken.

    Raises:
        FatalError: it is not built.
    """
    if found := shutil.which(_PROGRAM):
        return Path(found)
    profiles = ("release", "debug") if quick else ("release",)
    programs = [
        folder / "target" / profile / _PROGRAM
        for folder in Path(__file__).parents
        for profile in profiles
    ]
    if built := [program for program in programs if program.is_file()]:
        return max(built, key=lambda program: program.stat().st_mtime)
    raise FatalError(f"kvatlas bench: {_PROGRAM} is not built; run: make loadgen")
