"""The admin port: `/healthz` (the process answers), `/readyz` (it can do its work), `/metrics`."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Self

from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from kvatlas_chassis.errors import FatalError
from kvatlas_chassis.net import HostPort

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Obstacles = Callable[[], Sequence[str]]
"""Returns the reasons why the service is not ready; empty: it is ready."""
Refresh = Callable[[], Awaitable[None]]
"""Brings up to date what another process knows; must bound its own time."""


class AdminServer:
    """Serves health and metrics on their own address, from `start` to `close`.

    It runs on the service's event loop.
    """

    def __init__(self, runner: web.AppRunner, address: HostPort) -> None:
        self._runner = runner
        self.address = address

    @classmethod
    async def start(
        cls,
        listen: HostPort,
        registry: CollectorRegistry,
        obstacles: Obstacles,
        *,
        refresh: Refresh | None = None,
        pages: Mapping[str, Handler] | None = None,
        otherwise: Handler | None = None,
    ) -> Self:
        """Listen.

        `refresh` is awaited before `registry` or `obstacles` are read; `pages` are more paths, and
        `otherwise` answers all others.

        Raises:
            FatalError: the address cannot be used; the message names it.
        """
        app = web.Application()
        app.router.add_get("/healthz", _healthz)
        app.router.add_get("/readyz", _readyz(obstacles, refresh))
        app.router.add_get("/metrics", _metrics(registry, refresh))
        for path, page in (pages or {}).items():
            app.router.add_get(path, page)
        if otherwise is not None:
            app.router.add_route("*", "/{path:.*}", otherwise)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await runner.setup()
        address = await bind(runner, listen, what="admin")
        return cls(runner, address)

    async def close(self) -> None:
        """Stop listening."""
        await self._runner.cleanup()


async def bind(runner: web.AppRunner, listen: HostPort, *, what: str) -> HostPort:
    """Listen on `listen` and return the bound address; on failure clean the runner up.

    Raises:
        FatalError: the address is in use or not ours.
    """
    site = web.TCPSite(runner, listen.host, listen.port)
    try:
        await site.start()
    except OSError as error:
        await runner.cleanup()
        raise FatalError(f"cannot listen on --{what} {listen}: {error.strerror}") from None
    address: tuple[str, int] = runner.addresses[0][:2]
    return HostPort(*address)


async def _healthz(_: web.Request) -> web.Response:
    return web.Response(text="ok\n")


def _readyz(obstacles: Obstacles, refresh: Refresh | None) -> Handler:
    async def handler(_: web.Request) -> web.Response:
        if refresh is not None:
            await refresh()
        reasons = obstacles()
        if reasons:
            return web.Response(status=503, text="".join(f"{reason}\n" for reason in reasons))
        return web.Response(text="ready\n")

    return handler


def _metrics(registry: CollectorRegistry, refresh: Refresh | None) -> Handler:
    async def handler(_: web.Request) -> web.Response:
        if refresh is not None:
            await refresh()
        body = generate_latest(registry)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})

    return handler
