"""Our epochs told to the logs that we write to, and rivals learned of there.

An indexer that records go to directly refuses those of an older epoch. A log takes them all, so
there our claim stands beside the records, told every `CLAIM_S` seconds: whoever finds a newer one
of another publisher has been replaced, and ends. A log that does not answer is tried again; nothing
waits for it meanwhile.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Self

from kvatlas_chassis import FatalError, TaskSet
from kvatlas_events import Claim, ClaimRegister, LogUnavailable, Worker, open_claims
from kvatlas_publisher.life import Life
from kvatlas_publisher.settings import EngineSpec
from kvatlas_publisher.state_dir import Owner

log = logging.getLogger(__name__)

CLAIM_S = 2.0
ANSWER_S = 3.0


class Claims:
    """The claims of every log that this process writes to.

    Args:
        registers: by the URL of `--log` and the cell.
        claim_s: between two tellings, seconds.
    """

    def __init__(
        self,
        registers: Mapping[tuple[str, str], ClaimRegister] | None = None,
        *,
        claim_s: float = CLAIM_S,
    ) -> None:
        self._registers = registers or {}
        self._claim_s = claim_s

    @classmethod
    def open(cls, specs: Iterable[EngineSpec]) -> Self:
        """Open those of all logs of `specs`; nothing is connected yet.

        Raises:
            ValueError: a URL that cannot be used.
        """
        registers: dict[tuple[str, str], ClaimRegister] = {}
        for url, cell in dict.fromkeys((url, spec.cell) for spec in specs for url in spec.logs):
            register = open_claims(url, cell=cell)
            if register is not None:
                registers[url, cell] = register
        return cls(registers)

    async def seen(
        self, specs: Iterable[EngineSpec], *, answer_s: float = ANSWER_S
    ) -> dict[Owner, int]:
        """Return the highest epoch that any log was told of, per worker of `specs`.

        It takes `answer_s` seconds at most. A log that does not answer is named in the log. Where
        the rank is as the engine's events will say, rank 0 is asked for.
        """
        asked = [
            (register, Owner(spec.cell, Worker(spec.worker_id, spec.dp_rank or 0)))
            for spec in specs
            for register in self._of(spec)
        ]
        answers = [_epoch_in(register, owner, answer_s) for register, owner in asked]
        highest: dict[Owner, int] = {}
        for (_, owner), epoch in zip(asked, await asyncio.gather(*answers), strict=True):
            highest[owner] = max(epoch, highest.get(owner, 0))
        return highest

    def watch(self, spec: EngineSpec, life: Callable[[], Life | None], tasks: TaskSet) -> None:
        """Keep claiming as tasks of `tasks`, which fail with a FatalError that names a rival.

        `life`: returns the one that runs, or ran last; None: there was none yet.
        """
        for register in self._of(spec):
            tasks.start(self._keep_claiming(register, life), name=f"claim in {register.name}")

    async def close(self) -> None:
        """Let go of connections."""
        await asyncio.gather(*(register.close() for register in self._registers.values()))

    def _of(self, spec: EngineSpec) -> list[ClaimRegister]:
        keys = ((url, spec.cell) for url in dict.fromkeys(spec.logs))
        return [self._registers[key] for key in keys if key in self._registers]

    async def _keep_claiming(
        self, register: ClaimRegister, life: Callable[[], Life | None]
    ) -> None:
        fails = False
        while True:
            ours = life()
            try:
                if ours is not None:
                    await _claim(register, Claim.of(ours.header))
            except LogUnavailable as error:
                if not fails:
                    log.warning("cannot see whether another publisher is newer: %s", error)
                fails = True
            else:
                fails = False
            await asyncio.sleep(self._claim_s)


async def _claim(register: ClaimRegister, claim: Claim) -> None:
    rival = await register.claim(claim)
    if rival is not None:
        raise FatalError(f"kvatlas publisher: {claim.fenced_by(rival, register.name)}")


async def _epoch_in(register: ClaimRegister, owner: Owner, answer_s: float) -> int:
    try:
        async with asyncio.timeout(answer_s):
            claim = await register.claimed(owner.worker)
    except LogUnavailable as error:
        why = str(error)
    except TimeoutError:
        why = f"{register.name} does not answer within {answer_s:g} s"
    else:
        return 0 if claim is None else claim.epoch
    log.warning(
        "the log does not say which epoch worker %s is in: %s; going on without", owner.worker, why
    )
    return 0
