"""Chooses the tests of a run: the short form, and all slow tests or one part of them.

`make test` sets KVATLAS_TEST_SEED, which chooses one part in `PARTS` of the slow tests; the same
number chooses the same ones again. Without it all of them run.
"""

import os
import sys
import zlib
from pathlib import Path

import pytest
from xdist.remote import Producer  # pyright: ignore[reportMissingTypeStubs] - it has none
from xdist.scheduler import (  # pyright: ignore[reportMissingTypeStubs] - the same
    LoadScopeScheduling,
)

SEED = "KVATLAS_TEST_SEED"
PARTS = 4
FIRST = ("tests/e2e/", "tests/conformance/", "tests/integration/")
"""Folders whose tests take long: begun first, so that no worker is left with one at the end."""
LOG = "tests/conformance/log/"

REPOSITORY = Path(__file__).parents[1]

# Tests start some 500 processes. They share compiled modules, also where the shell forbids to keep
# any: to compile a service's modules takes three times as long as to load them.
sys.dont_write_bytecode = False
sys.pycache_prefix = os.environ.setdefault(
    "PYTHONPYCACHEPREFIX", str(REPOSITORY / ".venv" / "pycache")
)
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


def pytest_report_header() -> str:
    """Say which slow tests run, and how to run the same ones again."""
    seed = os.environ.get(SEED)
    if not seed:
        return "slow tests: all"
    return f"slow tests: part {int(seed) % PARTS} of {PARTS} ({SEED}={seed}; make test-slow: all)"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the slow tests of other parts, and put first what takes long."""
    seed = os.environ.get(SEED)
    if seed:
        left_out = [item for item in items if is_slow(item) and part(item) != int(seed) % PARTS]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in set(left_out)]
    items.sort(key=lambda item: not item.nodeid.startswith(FIRST))


def is_slow(item: pytest.Item) -> bool:
    return item.get_closest_marker("slow") is not None


def part(item: pytest.Item) -> int:
    """The part of a slow test: by its name alone, so that it does not depend on what else runs."""
    return zlib.crc32(item.nodeid.encode()) % PARTS


class Scheduling(LoadScopeScheduling):
    """Gives a worker that is free the next test; those that share Kafka brokers all go to one."""

    def _split_scope(self, nodeid: str) -> str:
        shares_kafka = nodeid.startswith(LOG) and "kafka" in nodeid
        return "kafka" if shares_kafka else nodeid


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Scheduling:
    return Scheduling(config, log)
