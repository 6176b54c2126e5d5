"""Joins the parts of one frontend and runs them; `main` gives it real indexers, tests scripted ones."""

import asyncio
import random
import time
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Protocol

import aiohttp
from prometheus_client import CollectorRegistry

from kvatlas_chassis import AdminServer, TaskSet
from kvatlas_frontend.fleet.models import ModelCatalog
from kvatlas_frontend.fleet.probes import probe_for_ever
from kvatlas_frontend.fleet.source import WorkerSource, follow
from kvatlas_frontend.fleet.table import Fleet
from kvatlas_frontend.metrics import FrontendMetrics
from kvatlas_frontend.proxy.engine import open_session
from kvatlas_frontend.proxy.executor import Executor
from kvatlas_frontend.proxy.usage import UsageCheck
from kvatlas_frontend.routing.check import CheckedProfile
from kvatlas_frontend.routing.plugin import Services
from kvatlas_frontend.routing.ports import MatchFinder
from kvatlas_frontend.routing.selector import Selector
from kvatlas_frontend.routing.workflow import SingleDispatch
from kvatlas_frontend.server import Api, ApiServer
from kvatlas_frontend.settings import FrontendSettings
from kvatlas_frontend.tokens.encoder import Encoder
from kvatlas_frontend.tokens.engine import HttpEngineTokenizer
from kvatlas_frontend.tokens.prompt import PromptTokenizer
from kvatlas_frontend.tokens.template import ChatTemplate


class Indexers(MatchFinder, WorkerSource, Protocol):
    """What a frontend asks of its cell's indexers."""


@dataclass(frozen=True, slots=True)
class Frontend:
    """A running frontend."""

    api: ApiServer
    admin: AdminServer
    tasks: TaskSet  # fails if the frontend must not go on
    fleet: Fleet
    models: ModelCatalog
    metrics: FrontendMetrics
    tokenizer: str


@asynccontextmanager
async def running(
    settings: FrontendSettings,
    profile: CheckedProfile,
    indexers: Indexers,
    encoder: Encoder | None,
    template: ChatTemplate | None,
) -> AsyncGenerator[Frontend]:
    """Run a frontend; on leaving, requests in flight get the grace period.

    Raises:
        FatalError: an address is in use.
    """
    metrics = FrontendMetrics(CollectorRegistry())
    fleet = Fleet()
    models = ModelCatalog(settings.model, fleet)
    told = asyncio.Event()
    async with AsyncExitStack() as stack:
        session = await stack.enter_async_context(
            open_session(connect_timeout_s=settings.connect_timeout_s)
        )
        deadline_s = settings.tokenize_deadline_ms / 1e3
        tokenizer = PromptTokenizer(
            encoder=encoder,
            template=template,
            engine=HttpEngineTokenizer(
                session, fleet, deadline_s=deadline_s, rng=random.Random(), now_s=time.monotonic
            ),
            threads=settings.tokenize_threads,
        )
        stack.callback(tokenizer.close)
        metrics.tokenizer.labels(tokenizer.name).set(1)
        services = Services(
            fleet=fleet,
            tokens=tokenizer,
            matches=indexers,
            block_size=settings.block_size,
            deadline_ms=settings.deadline_ms,
            now_s=time.monotonic,
        )
        api = _api(settings, profile, services, metrics=metrics, models=models, session=session)

        tasks = TaskSet()
        stack.push_async_callback(tasks.close)
        tasks.start(follow(indexers, fleet, metrics, told=told), name="workers")
        tasks.start(
            models.poll_for_ever(session, interval_s=settings.models_interval_s), name="models"
        )
        tasks.start(
            probe_for_ever(
                session,
                fleet,
                metrics,
                interval_s=settings.probe_interval_s,
                now_s=services.now_s,
            ),
            name="probes",
        )
        admin = await AdminServer.start(
            settings.admin, metrics.registry, lambda: obstacles(fleet, told, services.now_s())
        )
        stack.push_async_callback(admin.close)
        server = await ApiServer.start(api, settings.listen, grace_s=settings.grace_s)
        stack.push_async_callback(server.close)
        yield Frontend(server, admin, tasks, fleet, models, metrics, tokenizer.name)


def obstacles(fleet: Fleet, told: asyncio.Event, now_s: float) -> list[str]:
    """What keeps this frontend from its work."""
    if not told.is_set():
        return ["no indexer has told of any worker yet"]
    if not fleet.is_any_available(now_s):
        return [f"no worker is available ({len(fleet)} known)"]
    return []


def _api(
    settings: FrontendSettings,
    profile: CheckedProfile,
    services: Services,
    *,
    metrics: FrontendMetrics,
    models: ModelCatalog,
    session: aiohttp.ClientSession,
) -> Api:
    """The request's path."""
    selector = Selector(profile, services, timers=metrics.stage, now_s=time.perf_counter)
    workflow = SingleDispatch(selector, services.fleet, block_size=settings.block_size)
    executor = Executor(
        session=session,
        workflow=workflow,
        fleet=services.fleet,
        metrics=metrics,
        usage=UsageCheck(metrics, block_size=settings.block_size),
        attempts_max=settings.attempts_max,
        buffer_bytes_max=settings.response_buffer_bytes_max,
        now_s=services.now_s,
    )
    return Api(
        fleet=services.fleet,
        models=models,
        workflow=workflow,
        executor=executor,
        metrics=metrics,
        request_bytes_max=settings.request_bytes_max,
        now_s=services.now_s,
    )
