"""Joins the parts of one frontend and runs them. Tests pass scripted indexers instead of real ones."""

import asyncio
import random
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Final, Protocol

import aiohttp
from prometheus_client import CollectorRegistry

from kvatlas_chassis import AdminServer, TaskSet
from kvatlas_frontend.api.responses import Holders
from kvatlas_frontend.fleet.columns import Columns
from kvatlas_frontend.fleet.engine_tls import load_tls
from kvatlas_frontend.fleet.load_tracker import LoadTracker
from kvatlas_frontend.fleet.models import ModelCatalog
from kvatlas_frontend.fleet.probes import Probes
from kvatlas_frontend.fleet.table import Fleet
from kvatlas_frontend.fleet.watch import WorkerSource, follow_workers
from kvatlas_frontend.guarded_finder import GuardedFinder, NativeFinds
from kvatlas_frontend.memory import trim_after_bursts
from kvatlas_frontend.metrics import FrontendMetrics
from kvatlas_frontend.plane_work import PlaneWork
from kvatlas_frontend.proxy.executor import Executor
from kvatlas_frontend.proxy.usage import UsageCheck
from kvatlas_frontend.routing.check import CheckedProfile
from kvatlas_frontend.routing.interfaces import MatchFinder
from kvatlas_frontend.routing.plugin import Services
from kvatlas_frontend.routing.preparation import Preparation
from kvatlas_frontend.routing.selector import Selector
from kvatlas_frontend.routing.workflow import SingleDispatch
from kvatlas_frontend.server import Api, ApiServer
from kvatlas_frontend.settings import FrontendSettings
from kvatlas_frontend.tokens.chat_template import ChatTemplate
from kvatlas_frontend.tokens.encoder import Encoder
from kvatlas_frontend.tokens.engine_tokenizer import HttpEngineTokenizer
from kvatlas_frontend.tokens.prompt_tokenizer import PromptTokenizer
from kvatlas_native import SharedListener

_TRIM_INTERVAL_S: Final = 1.0


class Indexers(MatchFinder, WorkerSource, Protocol):
    """The cell's indexers, as a frontend uses them."""


@dataclass(frozen=True, slots=True)
class Frontend:
    """A running frontend."""

    api: ApiServer
    admin: AdminServer
    tasks: TaskSet  # fails if the frontend must not go on
    fleet: Fleet
    models: ModelCatalog
    metrics: FrontendMetrics
    policy: str
    tokenizer: str
    obstacles: Callable[[], list[str]]  # why it cannot serve requests now; empty: it can


@dataclass(frozen=True, slots=True)
class ProcessPart:
    """One process among several that serve the same port.

    Attributes:
        number: from 0.
        of: number of processes.
        listener: the socket that all share.
        tracker: makes the tracker that knows the load of all.
    """

    number: int
    of: int
    listener: SharedListener
    tracker: Callable[[Columns], LoadTracker]


@asynccontextmanager
async def running(
    settings: FrontendSettings,
    profile: CheckedProfile,
    indexers: Indexers,
    encoder: Encoder | None,
    template: ChatTemplate | None,
    *,
    native: NativeFinds | None = None,
    part: ProcessPart | None = None,
) -> AsyncGenerator[Frontend]:
    """Run a frontend; on exit, requests in flight get the grace period to end.

    `native`: with it the data plane asks the indexers itself. `part`: what this process shares with
    others that serve the same port; None: it is alone.

    Raises:
        FatalError: an address is in use, or a file of TLS cannot be used.
    """
    tls = load_tls(settings)
    metrics = FrontendMetrics(CollectorRegistry())
    fleet = Fleet() if part is None else Fleet(part.tracker)
    models = ModelCatalog(settings.model, fleet)
    workers_known = asyncio.Event()
    async with AsyncExitStack() as stack:
        session = await stack.enter_async_context(
            aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(ssl=tls.context),
                cookie_jar=aiohttp.DummyCookieJar(),
            )
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
        finder = GuardedFinder(indexers, metrics, time.monotonic, native=native)
        services = Services(
            fleet=fleet,
            tokens=tokenizer,
            matches=finder,
            block_size=settings.block_size,
            deadline_ms=settings.deadline_ms,
            now_s=time.monotonic,
            process=0 if part is None else part.number,
            processes=1 if part is None else part.of,
        )
        plane = PlaneWork.of(settings, profile, encoder, template, finder=finder)
        metrics.chat_template.labels(plane.renders).set(1)
        if plane.reader is not None:
            metrics.conversation_cache.stats = plane.reader.cache_stats
        api = _api(settings, profile, services, metrics=metrics, models=models, plane=plane)

        tasks = TaskSet()
        stack.push_async_callback(tasks.close)
        tasks.start(
            follow_workers(indexers, fleet, metrics, workers_known=workers_known), name="workers"
        )
        tasks.start(
            models.poll_forever(session, interval_s=settings.models_interval_s), name="models"
        )
        tasks.start(
            Probes(session, fleet, metrics, services.now_s).run(settings.probe_interval_s),
            name="probes",
        )

        def obstacles() -> list[str]:
            return reasons_not_ready(fleet, workers_known, services.now_s())

        admin = await AdminServer.start(settings.admin, metrics.registry, obstacles)
        stack.push_async_callback(admin.close)
        shared = None if part is None else part.listener
        server = ApiServer.start(api, plane, settings, metrics, tls=tls.data_plane, shared=shared)
        stack.push_async_callback(server.close)
        tasks.start(
            trim_after_bursts(lambda: server.in_flight, interval_s=_TRIM_INTERVAL_S), name="memory"
        )
        yield Frontend(
            api=server,
            admin=admin,
            tasks=tasks,
            fleet=fleet,
            models=models,
            metrics=metrics,
            policy=profile.name,
            tokenizer=tokenizer.name,
            obstacles=obstacles,
        )


def reasons_not_ready(fleet: Fleet, workers_known: asyncio.Event, now_s: float) -> list[str]:
    """Why this frontend cannot serve requests now; empty: it can."""
    if not workers_known.is_set():
        return ["no indexer has listed its workers yet"]
    if not fleet.is_any_available(now_s):
        return [f"no worker is available ({len(fleet)} known)"]
    return []


def single_dispatch(
    profile: CheckedProfile, services: Services, metrics: FrontendMetrics
) -> SingleDispatch:
    """A workflow of one profile."""
    preparation = Preparation(
        [profile],
        services,
        timers=metrics.routing_seconds,
        plugin_timers=metrics.plugin_timer,
        now_s=time.perf_counter,
    )
    selector = Selector(
        profile,
        services,
        timers=metrics.routing_seconds,
        plugin_timers=metrics.plugin_timer,
        now_s=time.perf_counter,
    )
    return SingleDispatch(preparation, selector, services.fleet, block_size=services.block_size)


def _api(
    settings: FrontendSettings,
    profile: CheckedProfile,
    services: Services,
    *,
    metrics: FrontendMetrics,
    models: ModelCatalog,
    plane: PlaneWork,
) -> Api:
    """The parts that a request passes, joined."""
    workflow = single_dispatch(profile, services, metrics)
    executor = Executor(
        workflow=workflow,
        fleet=services.fleet,
        metrics=metrics,
        usage=UsageCheck(metrics, block_size=settings.block_size),
        attempts_max=settings.attempts_max,
        now_s=services.now_s,
    )
    return Api(
        fleet=services.fleet,
        models=models,
        workflow=workflow,
        executor=executor,
        metrics=metrics,
        holders=Holders(settings.responses_remembered_max),
        now_s=services.now_s,
        plane=plane,
    )
