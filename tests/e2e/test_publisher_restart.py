"""A publisher with a state directory ends, and its next life goes on from the checkpoint."""

import dataclasses
import os
import signal
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from kvatlas_loadtest.supervisor import Command, Supervisor
from kvatlas_testing.valkey import EmbeddedValkey
from tests.e2e.struck_cell import StruckCell, killed, metric, reaches, until

_CHECKPOINT_S = 0.1


class RememberingCell(StruckCell):
    """Whose publishers share a state directory."""

    state_dir: Path

    def engine_command(self, place: int) -> Command:
        """An engine on the ports of one that is gone."""
        before = self.engines[place]
        command = super()._engine()
        ports = ("--listen", before.address())
        sockets = ("--events", before.address("events"), "--replay", before.address("replay"))
        return dataclasses.replace(command, argv=(*command.argv, *ports, *sockets))

    def _publisher(self, place: int) -> Command:
        command = super()._publisher(place)
        words = ("--state-dir", str(self.state_dir), "--checkpoint-s", str(_CHECKPOINT_S))
        return dataclasses.replace(command, argv=(*command.argv, *words))


@asynccontextmanager
async def remembering_cell(log_url: str, path: Path) -> AsyncGenerator[RememberingCell]:
    async with Supervisor(path, grace_s=0.0) as supervisor:
        cell = RememberingCell(supervisor, log_url)
        cell.state_dir = path / "state"
        await cell.start(((), ()))
        await cell.work()
        await cell.is_whole()
        yield cell


@pytest.mark.parametrize("politely", [pytest.param(True, marks=pytest.mark.slow), False])
async def test_a_restarted_publisher_goes_on_from_its_checkpoint(
    tmp_path: Path, *, politely: bool
) -> None:
    async with EmbeddedValkey() as valkey, remembering_cell(valkey.url, tmp_path) as cell:
        before = cell.publishers[0]
        epoch = await metric(before, "kvatlas_publisher_epoch")
        await reaches(before, "kvatlas_publisher_checkpoints_total", 1)
        async with cell.working() as traffics:
            if politely:
                os.kill(before.pid, signal.SIGTERM)

                async def lives() -> str | None:
                    return None if before.exit_status is not None else "the publisher lives"

                await until(lives)
                assert before.exit_status == 0
            else:
                await killed(before)
            await traffics[0].more(40)
            cell.publishers[0] = await cell.start_publisher(0)
        await cell.is_whole()
        after = cell.publishers[0]
        assert await metric(after, "kvatlas_publisher_checkpoints_resumed_total") == 1
        assert await metric(after, "kvatlas_publisher_epochs_total") == 1
        assert await metric(after, "kvatlas_publisher_epoch") > epoch


async def test_an_engine_that_was_restarted_meanwhile_is_not_credited_with_the_checkpoint(
    tmp_path: Path,
) -> None:
    async with EmbeddedValkey() as valkey, remembering_cell(valkey.url, tmp_path) as cell:
        await reaches(cell.publishers[0], "kvatlas_publisher_checkpoints_total", 1)
        await killed(cell.publishers[0])
        await killed(cell.engines[0])
        (cell.engines[0],) = await cell.supervisor.start([cell.engine_command(0)])
        cell.publishers[0] = await cell.start_publisher(0)
        await cell.work()
        await cell.is_whole()
        after = cell.publishers[0]
        assert await metric(after, "kvatlas_publisher_checkpoints_resumed_total") == 0
        assert await metric(after, "kvatlas_publisher_checkpoints_dropped_total") == 1
