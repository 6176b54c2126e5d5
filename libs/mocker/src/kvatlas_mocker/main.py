"""`kvatlas mock-engine`: an engine without a model, with vLLM's interfaces as far as we use them."""

from collections.abc import Sequence

from kvatlas_chassis import AdminServer, StopSignal, TaskSet, announce_ready, run_service
from kvatlas_mocker.chat_template import open_template
from kvatlas_mocker.engine import Engine
from kvatlas_mocker.metrics import EngineMetrics
from kvatlas_mocker.server import EngineServer
from kvatlas_mocker.settings import MockEngineSettings
from kvatlas_mocker.tokenizer import open_tokenizer


def command(argv: Sequence[str]) -> int:
    """Run `kvatlas mock-engine`."""
    return run_service(
        serve,
        MockEngineSettings,
        service="mock-engine",
        argv=argv,
        description="Run a mock inference engine with vLLM's HTTP API, KV events and metrics.",
    )


async def serve(settings: MockEngineSettings) -> None:
    """Run the engine until SIGTERM."""
    stop = StopSignal()
    tasks = TaskSet()
    tokenizer = open_tokenizer(settings.tokenizer, fast=settings.fast_tokenizer)
    engine = Engine(settings, tasks, tokenizer, open_template(settings.tokenizer))
    metrics = EngineMetrics(engine)
    try:
        engine.start()
        server = await EngineServer.start(settings.listen, engine, metrics)
        try:
            admin = await AdminServer.start(settings.admin, metrics.registry, tuple)
            try:
                _queue_stored(engine, server, admin)
                await stop.wait(tasks)
            finally:
                await admin.close()
        finally:
            await server.close()
    finally:
        await tasks.close()
        engine.close()


def _queue_stored(engine: Engine, server: EngineServer, admin: AdminServer) -> None:
    first = engine.ranks[0].event_stream.address
    sockets = {"events": first.events, "replay": first.replay}
    announce_ready(
        listen=server.address,
        admin=admin.address,
        **{name: endpoint for name, endpoint in sockets.items() if endpoint is not None},
        model=engine.settings.model,
        block_size=engine.settings.block_size,
        dp_ranks=len(engine.ranks),
        epoch=engine.epoch,
    )
