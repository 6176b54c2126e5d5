"""`kvatlas publisher`: follows engines and publishes what their caches hold."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from functools import partial

import aiohttp
from prometheus_client import CollectorRegistry, GCCollector, ProcessCollector

from kvatlas_chassis import (
    AdminServer,
    StopSignal,
    TaskSet,
    announce_ready,
    run_service,
)
from kvatlas_chassis.metrics import ScrapedMetrics
from kvatlas_engines.sequencer import FollowerSettings
from kvatlas_native import MirrorMemory
from kvatlas_publisher.context import ProcessContext, WorkerContext
from kvatlas_publisher.engine.http import EngineHttp
from kvatlas_publisher.metrics import publisher_metrics
from kvatlas_publisher.ownership.claims import Claims
from kvatlas_publisher.ownership.duplicate_workers import watch_duplicate_workers
from kvatlas_publisher.ownership.indexer_epochs import epochs_at_indexers
from kvatlas_publisher.rpc import RpcServer
from kvatlas_publisher.settings import (
    EngineSpec,
    PublisherSettings,
    engine_specs,
    new_instance_id,
)
from kvatlas_publisher.state.state_dir import CellWorker, StateDir
from kvatlas_publisher.worker_publisher import WorkerPublisher

_GRACE_FOR_DELIVERY = 0.7
"""Share of the grace period for delivering the last records; the rest is for everything else."""


def command(argv: Sequence[str]) -> int:
    """Run `kvatlas publisher`."""
    return run_service(
        serve,
        PublisherSettings,
        service="publisher",
        argv=argv,
        description="Follows the KV-cache events of inference engines, and publishes to an event "
        "log which blocks each engine's cache holds. The flags describe one engine; a configuration "
        "file may list several under engines:.",
    )


async def serve(settings: PublisherSettings) -> None:
    """Run a publisher until it is told to stop.

    Raises:
        FatalError: a setting or an address cannot be used, an engine is not what was configured,
            or another publisher owns one of the workers.
    """
    specs = engine_specs(settings)
    stop = StopSignal()
    rpc = await RpcServer.start(settings.listen)
    memory = MirrorMemory()
    try:
        async with open_publishers(settings, specs, rpc, memory) as publishers:
            rpc.serve_workers(publishers)
            registry = CollectorRegistry()
            ScrapedMetrics(partial(publisher_metrics, publishers, memory), registry)
            ProcessCollector(registry=registry)
            GCCollector(registry=registry)
            admin = await AdminServer.start(settings.admin, registry, lambda: obstacles(publishers))
            tasks = TaskSet()
            try:
                for publisher in publishers:
                    tasks.start(publisher.run(), name=f"worker {publisher.worker}")
                tasks.start(watch_duplicate_workers(publishers), name="duplicate workers")
                announce_ready(listen=rpc.address, admin=admin.address)
                await stop.wait(tasks)
            finally:
                await tasks.close()
                await admin.close()
    finally:
        await rpc.close(0)


@asynccontextmanager
async def open_publishers(
    settings: PublisherSettings, specs: Sequence[EngineSpec], rpc: RpcServer, memory: MirrorMemory
) -> AsyncGenerator[list[WorkerPublisher], None]:
    """Make a publisher per engine rank; at the exit, deliver the end of each one's epoch."""
    state = None if settings.state_dir is None else StateDir.open(settings.state_dir)
    writers = [spec.open_writers() for spec in specs]
    claims = Claims.open(specs)
    process = ProcessContext(
        instance_id=new_instance_id(),
        advertised_rpc=str(settings.advertise or rpc.address),
        memory=memory,
        seen_epochs=await _seen_epochs(specs, claims),
        # A message that is read sooner would only wait for the flush.
        follower=FollowerSettings(read_interval_s=settings.flush_s),
    )
    async with aiohttp.ClientSession() as http:
        publishers = [
            WorkerPublisher(
                WorkerContext(spec, settings, process, state),
                spec_writers,
                None if spec.engine_url is None else EngineHttp(http, spec.engine_url),
                claims,
            )
            for spec, spec_writers in zip(specs, writers, strict=True)
        ]
        try:
            await asyncio.gather(*(publisher.monitor.check() for publisher in publishers))
            yield publishers
        finally:
            drain_s = settings.grace_s * _GRACE_FOR_DELIVERY
            await asyncio.gather(*(publisher.close(drain_s) for publisher in publishers))
            await claims.close()


async def _seen_epochs(specs: Sequence[EngineSpec], claims: Claims) -> dict[CellWorker, int]:
    """Return the highest epoch that indexers and logs know, per worker."""
    indexers = (address for spec in specs for address in spec.direct_indexers)
    at_indexers, claimed = await asyncio.gather(
        epochs_at_indexers(indexers), claims.claimed_epochs(specs)
    )
    workers = {*at_indexers, *claimed}
    return {each: max(at_indexers.get(each, 0), claimed.get(each, 0)) for each in workers}


def obstacles(publishers: Sequence[WorkerPublisher]) -> list[str]:
    """Return the reasons why the publisher is not ready."""
    reasons: list[str] = []
    for publisher in publishers:
        if publisher.epoch is None:
            reasons.append(f"worker {publisher.worker}: the engine has not been heard of")
        reasons.extend(
            f"worker {publisher.worker}: {delivery.unavailable}"
            for delivery in publisher.pipeline.deliveries
            if delivery.unavailable is not None
        )
    return reasons
