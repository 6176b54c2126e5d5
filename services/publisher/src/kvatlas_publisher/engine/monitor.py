"""Keeps asking an engine's HTTP for its load, capacity, block size and model."""

import asyncio

from kvatlas_publisher.context import WorkerContext
from kvatlas_publisher.engine.http import EngineHttp, Scrape, check_agreement


class EngineMonitor:
    """The newest HTTP status of one engine, and the check that it is the configured one.

    Args:
        context: the worker.
        http: the engine's HTTP; None: it is not configured, and nothing is asked.
    """

    def __init__(self, context: WorkerContext, http: EngineHttp | None) -> None:
        self.scrape: Scrape | None = None
        """The newest metrics; None: the last request for them failed."""
        self._context = context
        self._http = http
        self._models_checked = False

    @property
    def answers(self) -> bool:
        """The engine answered the last HTTP request."""
        return self._http is not None and self._http.answers

    async def run(self) -> None:
        """Ask at every heartbeat interval, beside the heartbeats: a slow answer delays none.

        Raises:
            SettingsError: as `check`.
        """
        while self._http is not None:
            await self.check()
            await asyncio.sleep(self._context.settings.heartbeat_s)

    async def check(self) -> None:
        """Ask once. An engine that does not answer yet passes.

        Raises:
            SettingsError: the engine's model or block size differs from the configured one.
        """
        if self._http is None:
            return
        spec, worker = self._context.spec, self._context.worker
        self.scrape = await self._http.scrape(dp_rank=worker.dp_rank, block_size=spec.block_size)
        models = None if self._models_checked else await self._http.models()
        self._models_checked = self._models_checked or models is not None
        check_agreement(self.scrape, models, model=spec.model, block_size=spec.block_size)

    def on_engine_restarted(self) -> None:
        """Check the model again: a restarted engine may serve another one."""
        self._models_checked = False
