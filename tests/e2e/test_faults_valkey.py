"""A Valkey log that is killed or stalls, under a cell of real processes."""

import time
from pathlib import Path

import pytest

from kvatlas_testing.child_process import paused
from kvatlas_testing.valkey import EmbeddedValkey
from tests.e2e.struck_cell import LEASE_S, StruckCell, metric, struck_cell


async def resent(cell: StruckCell) -> list[float]:
    """How often publishers sent a snapshot and indexers asked for anything."""
    sent = [await metric(each, "kvatlas_publisher_snapshots_total") for each in cell.publishers]
    asked = [
        await metric(each, "kvatlas_indexer_recovery_attempts_total") for each in cell.indexers
    ]
    return [*sent, *asked]


async def test_a_killed_log_that_comes_back_empty_is_filled_again(tmp_path: Path) -> None:
    async with EmbeddedValkey() as valkey, struck_cell(valkey.url, tmp_path) as cell:
        async with cell.working() as traffics:
            valkey.kill()
            for traffic in traffics:
                await traffic.more(60)
            valkey.start()
        await cell.is_whole()


@pytest.mark.slow
async def test_a_log_that_stalls_costs_no_match_no_worker_and_nothing_sent_again(
    tmp_path: Path,
) -> None:
    async with EmbeddedValkey() as valkey, struck_cell(valkey.url, tmp_path) as cell:
        before = await resent(cell)
        assert valkey.pid is not None
        with paused(valkey.pid):
            until_s = time.monotonic() + 2 * LEASE_S
            while time.monotonic() < until_s:
                assert [await cell.differs(each) for each in cell.indexers] == [None, None]
        # Who comes back first must not age the others.
        until_s = time.monotonic() + LEASE_S / 2
        while time.monotonic() < until_s:
            assert [await cell.differs(each) for each in cell.indexers] == [None, None]
        await cell.is_whole()
        await cell.work()
        await cell.is_whole()
        assert await resent(cell) == before
