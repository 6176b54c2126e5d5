"""Indexers that are killed, and one whose disk is full, under a cell of real processes."""

import resource
from pathlib import Path

import pytest

from kvatlas_loadtest.supervisor import Process
from kvatlas_testing.valkey import EmbeddedValkey
from tests.e2e.struck_cell import killed, metric, reaches, struck_cell

WRITTEN = "kvatlas_indexer_state_files_written_total"
FAILED = "kvatlas_indexer_state_files_failed_total"


def snapshot_loop(directory: Path) -> tuple[str, ...]:
    return ("--snapshot-dir", str(directory), "--snapshot-interval-s", "0.2")


async def another(process: Process, name: str) -> None:
    """Wait for two more: the first may have been under way already."""
    await reaches(process, name, await metric(process, name) + 2)


async def test_killed_indexers_return_with_and_without_a_state_of_theirs(tmp_path: Path) -> None:
    words = snapshot_loop(tmp_path / "state")
    async with (
        EmbeddedValkey() as valkey,
        struck_cell(valkey.url, tmp_path, indexer_words=(words, ())) as cell,
    ):
        await another(cell.indexers[0], WRITTEN)
        async with cell.working() as traffics:
            for indexer in cell.indexers:
                await killed(indexer)
            for traffic in traffics:
                await traffic.more(60)
            cell.indexers = [await cell.start_indexer(*words), await cell.start_indexer()]
        for indexer, source in zip(cell.indexers, ("file", "log"), strict=True):
            assert await metric(indexer, "kvatlas_indexer_start", source=source) == 1
        await cell.is_whole()


def limit_files(process: Process, size: int) -> None:
    """Let no file of a process grow beyond so many bytes, which fails as on a full disk."""
    _, most = resource.prlimit(process.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (size, most))


@pytest.mark.slow
async def test_a_full_disk_costs_new_states_and_neither_old_ones_nor_the_index(
    tmp_path: Path,
) -> None:
    directory = tmp_path / "state"
    words = snapshot_loop(directory)
    async with (
        EmbeddedValkey() as valkey,
        struck_cell(valkey.url, tmp_path, indexer_words=(words, ())) as cell,
    ):
        strained = cell.indexers[0]
        await another(strained, WRITTEN)
        limit_files(strained, 1_024)
        await another(strained, FAILED)
        kept = sorted(path.name for path in directory.glob("state-*.arrow"))
        assert kept
        await cell.work()
        await another(strained, FAILED)
        assert sorted(path.name for path in directory.iterdir()) == kept
        await cell.is_whole()

        limit_files(strained, resource.RLIM_INFINITY)
        await another(strained, WRITTEN)
        await killed(strained)
        await cell.work()
        cell.indexers[0] = await cell.start_indexer(*words)
        assert await metric(cell.indexers[0], "kvatlas_indexer_start", source="file") == 1
        passed_over = "kvatlas_indexer_state_files_passed_over_total"
        assert await metric(cell.indexers[0], passed_over) == 0
        await cell.is_whole()
