"""`kvatlas publisher`: follows engines and says what their caches hold."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

import aiohttp
from prometheus_client import CollectorRegistry, GCCollector, ProcessCollector

from kvatlas_chassis import (
    AdminServer,
    StopSignal,
    TaskSet,
    announce_ready,
    run_service,
)
from kvatlas_engines.stream import StreamTiming
from kvatlas_native import Memory
from kvatlas_publisher.claims import Claims
from kvatlas_publisher.engine_http import EngineHttp
from kvatlas_publisher.metrics import SessionsCollector
from kvatlas_publisher.rpc import RpcServer
from kvatlas_publisher.seen_epochs import seen_epochs
from kvatlas_publisher.session import Session
from kvatlas_publisher.session_terms import SessionSettings
from kvatlas_publisher.settings import (
    EngineSpec,
    PublisherSettings,
    engine_specs,
    new_instance_id,
)
from kvatlas_publisher.state_dir import StateDir
from kvatlas_publisher.twins import watch_twins

# Of the grace period, to deliver the last words; the rest is for everything else to end.
_GRACE_FOR_DELIVERY = 0.7


def command(argv: Sequence[str]) -> int:
    """Run `kvatlas publisher`."""
    return run_service(
        serve,
        PublisherSettings,
        service="publisher",
        argv=argv,
        description="Follows an engine's KV-cache events and says what its cache holds.",
    )


async def serve(settings: PublisherSettings) -> None:
    """Run a publisher until it is told to stop.

    Raises:
        FatalError: a setting or an address cannot be used, an engine is not what was configured,
            or another publisher speaks for one of the workers.
    """
    specs = engine_specs(settings)
    stop = StopSignal()
    rpc = await RpcServer.start(settings.listen)
    memory = Memory()
    try:
        async with (
            aiohttp.ClientSession() as http,
            publishing(settings, specs, rpc, http, memory) as sessions,
        ):
            rpc.speak_for(sessions)
            registry = CollectorRegistry()
            SessionsCollector(sessions, memory, registry)
            ProcessCollector(registry=registry)
            GCCollector(registry=registry)
            admin = await AdminServer.start(settings.admin, registry, lambda: obstacles(sessions))
            tasks = TaskSet()
            try:
                for session in sessions:
                    tasks.start(session.run(), name=f"session {session.worker}")
                tasks.start(watch_twins(sessions), name="twins")
                announce_ready(listen=rpc.address, admin=admin.address)
                await stop.wait(tasks)
            finally:
                await tasks.close()
                await admin.close()
    finally:
        await rpc.close(0)


@asynccontextmanager
async def publishing(
    settings: PublisherSettings,
    specs: Sequence[EngineSpec],
    rpc: RpcServer,
    http: aiohttp.ClientSession,
    memory: Memory,
) -> AsyncGenerator[list[Session], None]:
    """Make a session per engine rank; at the exit all have said that they leave."""
    state = None if settings.state_dir is None else StateDir.open(settings.state_dir)
    writers = [spec.open_writers() for spec in specs]
    claims = Claims.open(specs)
    seen, claimed = await asyncio.gather(
        seen_epochs(each for spec in specs for each in spec.direct_indexers), claims.seen(specs)
    )
    shared = SessionSettings(
        instance_id=new_instance_id(),
        advertised_rpc=str(settings.advertise or rpc.address),
        heartbeat_s=settings.heartbeat_s,
        engine_gone_s=settings.engine_gone_s,
        flush_s=settings.flush_s,
        mirror_blocks_max=settings.mirror_blocks_max,
        memory=memory,
        replay_bytes_max=settings.replay_bytes_max,
        checkpoint_s=settings.checkpoint_s,
        seen_epochs={
            owner: max(seen.get(owner, 0), claimed.get(owner, 0)) for owner in {*seen, *claimed}
        },
        claims=claims,
        timing=StreamTiming(rest_s=settings.flush_s),  # what is read sooner would only wait longer
    )
    sessions = [
        Session(
            spec,
            shared,
            theirs,
            None if spec.engine_url is None else EngineHttp(http, spec.engine_url),
            state=state,
        )
        for spec, theirs in zip(specs, writers, strict=True)
    ]
    try:
        await asyncio.gather(*(session.check_engine() for session in sessions))
        yield sessions
    finally:
        drain_s = settings.grace_s * _GRACE_FOR_DELIVERY
        await asyncio.gather(*(session.close(drain_s) for session in sessions))
        await claims.close()


def obstacles(sessions: Sequence[Session]) -> list[str]:
    """Say what keeps the publisher from its work."""
    reasons: list[str] = []
    for session in sessions:
        if session.life is None:
            reasons.append(f"worker {session.worker}: the engine has not been heard of")
        reasons.extend(
            f"worker {session.worker}: {delivery.unavailable}"
            for delivery in session.deliveries
            if delivery.unavailable is not None
        )
    return reasons
