"""Claims this process's workers in the logs, and ends the process when another one claims them.

An indexer behind a `grpc:` log refuses the records of an older epoch. Other logs take them all, so
there the publishers write claims beside the records: worker, epoch, publisher. Each publisher
repeats its claim every two seconds. One that finds a newer claim of another publisher has been
replaced, and ends. If a log does not answer, the claim is repeated; no event waits for it.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Self

from kvatlas_chassis import FatalError, TaskSet
from kvatlas_events import Claim, ClaimRegister, Header, LogUnavailable, WorkerKey, open_claims
from kvatlas_publisher.settings import EngineSpec
from kvatlas_publisher.state.state_dir import CellWorker

log = logging.getLogger(__name__)

_CLAIM_S = 2.0
_ANSWER_S = 3.0


class Claims:
    """The claim registers of every log that this process writes to.

    Args:
        registers: by the URL of `--log` and the cell.
    """

    def __init__(self, registers: Mapping[tuple[str, str], ClaimRegister] | None = None) -> None:
        self._registers = registers or {}

    @classmethod
    def open(cls, specs: Iterable[EngineSpec]) -> Self:
        """Open the registers of all logs of `specs`; nothing is connected yet.

        Raises:
            ValueError: a URL that cannot be used.
        """
        registers: dict[tuple[str, str], ClaimRegister] = {}
        for url, cell in dict.fromkeys((url, spec.cell) for spec in specs for url in spec.logs):
            register = open_claims(url, cell=cell)
            if register is not None:
                registers[url, cell] = register
        return cls(registers)

    async def claimed_epochs(self, specs: Iterable[EngineSpec]) -> dict[CellWorker, int]:
        """Return the highest epoch that any log holds a claim of, per worker of `specs`.

        It takes three seconds at most. The publisher's log names each log that does not
        answer. Without `--dp-rank` this asks for rank 0.
        """
        questions = [
            (register, CellWorker(spec.cell, WorkerKey(spec.worker_id, spec.dp_rank or 0)))
            for spec in specs
            for register in self._registers_of(spec)
        ]
        answers = [_claimed_epoch(register, worker) for register, worker in questions]
        highest: dict[CellWorker, int] = {}
        for (_, worker), epoch in zip(questions, await asyncio.gather(*answers), strict=True):
            highest[worker] = max(epoch, highest.get(worker, 0))
        return highest

    def start(self, spec: EngineSpec, header: Callable[[], Header | None], tasks: TaskSet) -> None:
        """Claim repeatedly, in tasks that fail with a FatalError if another publisher is newer.

        Args:
            spec: the engine rank, for its logs.
            header: returns the header of the worker's newest epoch; None: there was none yet.
            tasks: gets one task a log.
        """
        for register in self._registers_of(spec):
            tasks.start(self._run(register, header), name=f"claim in {register.name}")

    async def close(self) -> None:
        """Close all connections."""
        await asyncio.gather(*(register.close() for register in self._registers.values()))

    def _registers_of(self, spec: EngineSpec) -> list[ClaimRegister]:
        keys = ((url, spec.cell) for url in dict.fromkeys(spec.logs))
        return [self._registers[key] for key in keys if key in self._registers]

    async def _run(self, register: ClaimRegister, header: Callable[[], Header | None]) -> None:
        fails = False
        while True:
            newest = header()
            try:
                if newest is not None:
                    await _claim(register, Claim.of(newest))
            except LogUnavailable as error:
                if not fails:
                    log.warning("cannot check for a newer publisher: %s", error)
                fails = True
            else:
                fails = False
            await asyncio.sleep(_CLAIM_S)


async def _claim(register: ClaimRegister, claim: Claim) -> None:
    rival = await register.claim(claim)
    if rival is not None:
        raise FatalError(f"kvatlas publisher: {claim.fenced_by(rival, register.name)}")


async def _claimed_epoch(register: ClaimRegister, worker: CellWorker) -> int:
    try:
        async with asyncio.timeout(_ANSWER_S):
            claim = await register.claimed(worker.worker)
    except LogUnavailable as error:
        reason = str(error)
    except TimeoutError:
        reason = f"{register.name} does not answer within {_ANSWER_S:g} s"
    else:
        return 0 if claim is None else claim.epoch
    log.warning("cannot get the claimed epoch of worker %s: %s; going on", worker.worker, reason)
    return 0
