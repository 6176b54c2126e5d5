"""Where the native load generator is: `loadtest/rust`, built by `make loadgen`."""

import shutil
from pathlib import Path

from kvatlas_chassis import FatalError

_PROGRAM = "kvatlas-loadgen"


def find_program(*, quick: bool) -> Path:
    """The load generator: on PATH, or as cargo built it in the checkout.

    Args:
        quick: an unoptimized build will do.

    Raises:
        FatalError: it is not built.
    """
    if found := shutil.which(_PROGRAM):
        return Path(found)
    for profile in ("release", "debug") if quick else ("release",):
        for folder in Path(__file__).parents:
            built = folder / "target" / profile / _PROGRAM
            if built.is_file():
                return built
    raise FatalError(f"kvatlas bench: {_PROGRAM} is not built; run: make loadgen")
