"""The supervisor: holds the port, starts the processes, tells of all of them on the admin port.

It serves no requests and has no part in any: they reach a process by the listening socket, which all
share. So while it restarts a process the port refuses nobody, and connections that no process had
accepted wait for the others.
"""

import asyncio
import contextlib
import logging
import socket
import time
from collections.abc import AsyncGenerator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Final

import aiohttp
from aiohttp import web
from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.metrics_core import Metric
from yarl import URL

from kvatlas_chassis import (
    AdminServer,
    FatalError,
    HostPort,
    SettingsError,
    StopSignal,
    TaskSet,
    announce_ready,
    setup_logging,
)
from kvatlas_chassis.metrics import ScrapedMetrics
from kvatlas_client import WorkerKey
from kvatlas_frontend.metrics import SUMMED_GAUGES
from kvatlas_frontend.processes.control import (
    ClaimRow,
    GrantRow,
    Ready,
    ReleaseRow,
    Start,
    Stop,
)
from kvatlas_frontend.processes.link import Link
from kvatlas_frontend.processes.memory import ROWS, SharedMemory
from kvatlas_frontend.processes.metrics import Ended, as_metric, merged
from kvatlas_frontend.processes.restarts import Backoff
from kvatlas_frontend.processes.rows import Grant, RowTable
from kvatlas_frontend.settings import FrontendSettings

log = logging.getLogger(__name__)

_BACKLOG: Final = 1024
_ANSWER_S: Final = 1.0  # the longest wait for a process's status
_UPDATE_S: Final = 1.0  # so much of its counts can a process take along when it is killed
_BEYOND_GRACE_S: Final = 5.0
_PASSED_ON: Final = aiohttp.ClientTimeout(total=10.0)


async def supervise(settings: FrontendSettings, *, policy: str) -> None:
    """Run a frontend of several processes until it is told to stop.

    Raises:
        FatalError: a setting cannot work, or an address is in use.
    """
    setup_logging(settings.log_level, settings.log_format, process="supervisor")
    stop = StopSignal()
    async with AsyncExitStack() as stack:
        listener = await listening(settings.listen)
        stack.callback(listener.close)
        memory = SharedMemory.create(settings.processes)
        stack.callback(memory.close)
        processes = Processes(settings, listener, memory)
        session = await stack.enter_async_context(aiohttp.ClientSession())
        admin = await AdminServer.start(
            settings.admin,
            processes.registry,
            processes.obstacles,
            refresh=processes.update,
            pages={"/processes": processes.page},
            otherwise=partial(_passed_on, session, processes),
        )
        stack.push_async_callback(admin.close)
        tasks = await stack.enter_async_context(processes.running())

        async def announce() -> None:
            tokenizer = await processes.ready()
            address = listener.getsockname()
            announce_ready(
                listen=HostPort(address[0], address[1]),
                admin=admin.address,
                policy=policy,
                tokenizer=tokenizer,
                processes=settings.processes,
            )

        tasks.start(announce(), name="ready line")
        await stop.wait(tasks)


async def _passed_on(
    session: aiohttp.ClientSession, processes: "Processes", request: web.Request
) -> web.Response:
    """Pass a request of the admin port to a process that can serve: any one can answer it."""
    admin = processes.able()
    if admin is None:
        return web.Response(status=503, text="no process can answer\n")
    url = URL(f"http://{admin}").join(request.rel_url)
    try:
        async with session.request(
            request.method, url, data=await request.read(), timeout=_PASSED_ON
        ) as answer:
            return web.Response(
                status=answer.status,
                body=await answer.read(),
                headers={"Content-Type": answer.headers.get("Content-Type", "text/plain")},
            )
    except (aiohttp.ClientError, TimeoutError) as error:
        return web.Response(status=502, text=f"a process did not answer: {error}\n")


async def listening(listen: HostPort) -> socket.socket:
    """A socket that listens, for processes to share.

    Raises:
        FatalError: the address cannot be used.
    """
    try:
        found = await asyncio.get_running_loop().getaddrinfo(
            listen.host, listen.port, type=socket.SOCK_STREAM
        )
        family, kind, protocol, _, address = found[0]
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.setblocking(False)
            listener.bind(address)
            listener.listen(_BACKLOG)
        except OSError:
            listener.close()
            raise
    except OSError as error:
        reason = error.strerror or str(error)
        raise FatalError(f"cannot listen on --listen {listen}: {reason}") from None
    return listener


class Processes:
    """Keeps all processes running, and knows what they counted."""

    def __init__(
        self, settings: FrontendSettings, listener: socket.socket, memory: SharedMemory
    ) -> None:
        self._settings = settings
        self._listener = listener
        self._memory = memory
        self._links: dict[int, Link] = {}
        self._ended = Ended()
        self._rows = RowTable(ROWS)
        self._not_ready = set(range(settings.processes))
        self._all_ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._stopping = asyncio.Event()
        self.registry = CollectorRegistry()
        Gauge(
            "kvatlas_frontend_processes",
            "Processes that serve the port, by --processes",
            registry=self.registry,
        ).set(settings.processes)
        self._up = Gauge(
            "kvatlas_frontend_process_up",
            "1 for a process that answers the supervisor",
            ["process"],
            registry=self.registry,
        )
        self._restarts = Counter(
            "kvatlas_frontend_process_restarts",
            "Processes started again after one had ended",
            registry=self.registry,
        )
        self._unshared = Gauge(
            "kvatlas_frontend_workers_unshared",
            f"Workers beyond the first {ROWS:,}, whose load each process counts alone",
            registry=self.registry,
        )
        ScrapedMetrics(self._collect, self.registry)

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[TaskSet]:
        """Run all processes; on exit, those that run get the grace period to end.

        A task fails if the frontend must not go on. Then, and after an error inside the context,
        the processes are killed.
        """
        tasks = TaskSet()
        keepers = [
            tasks.start(self._keep(process), name=f"process {process}")
            for process in range(self._settings.processes)
        ]
        updates = tasks.start(self._update_forever(), name="updates")
        try:
            yield tasks
            self._stopping.set()
            self._listener.close()
            for link in self._links.values():
                link.send(Stop())
            await asyncio.wait(keepers, timeout=self._settings.grace_s + _BEYOND_GRACE_S)
        finally:
            self._stopping.set()
            for link in self._links.values():
                link.kill()
            await asyncio.gather(*keepers, return_exceptions=True)
            updates.cancel()
            await tasks.close()

    async def ready(self) -> str:
        """Wait until all processes serve; returns the name of their tokenizer."""
        return await asyncio.shield(self._all_ready)

    async def update(self) -> None:
        """Ask all processes how they are."""
        await asyncio.gather(*(self._update(link) for link in list(self._links.values())))
        for process in range(self._settings.processes):
            link = self._links.get(process)
            self._up.labels(str(process)).set(link is not None and link.is_up)
        self._unshared.set(self._rows.waiting)

    def obstacles(self) -> list[str]:
        """Why no process can serve requests now; empty: one can."""
        if self._stopping.is_set():
            return ["it is stopping"]
        told = [
            link.status.obstacles for link in self._links.values() if link.is_up and link.status
        ]
        if not told:
            return ["no process answers"]
        if not all(told):
            return []
        return sorted({reason for reasons in told for reason in reasons})

    async def page(self, _: web.Request) -> web.Response:
        """The processes that run now, with the admin port that each has for itself."""
        await self.update()
        listing = [
            {"process": link.process, "pid": link.pid, "admin": link.admin, "up": link.is_up}
            for _, link in sorted(self._links.items())
        ]
        return web.json_response(listing)

    def able(self) -> str | None:
        """The admin address of a process that can serve, by what it said last; None: none can."""
        for link in self._links.values():
            if link.is_up and link.admin and link.status is not None and not link.status.obstacles:
                return link.admin
        return None

    def _collect(self) -> Iterable[Metric]:
        known = [link.status.families for link in self._links.values() if link.status is not None]
        parts = [self._ended.families, *known]
        return [as_metric(family) for family in merged(parts, summed_gauges=SUMMED_GAUGES)]

    async def _update_forever(self) -> None:
        while True:
            await self.update()
            await asyncio.sleep(_UPDATE_S)

    async def _update(self, link: Link) -> None:
        was_up = link.is_up
        await link.update(_ANSWER_S)
        if self._links.get(link.process) is not link:
            return  # it ended meanwhile
        self._memory.set_hung(link.process, is_hung=not link.is_up)
        if was_up and not link.is_up:
            log.warning("process %d (pid %d) does not answer", link.process, link.pid)

    async def _keep(self, process: int) -> None:
        """Run a process, again and again, until the frontend stops.

        Raises:
            FatalError: the frontend must not go on.
        """
        backoff = Backoff()
        while True:
            began_s = time.monotonic()
            how = await self._run(process)
            if self._stopping.is_set():
                return
            pause_s = backoff.pause_s(time.monotonic() - began_s)
            log.error("process %d ended %s; starting it again in %.1f s", process, how, pause_s)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._stopping.wait()
            if self._stopping.is_set():
                return
            self._restarts.inc()

    async def _run(self, process: int) -> str:
        """Run a process to its end; returns how it ended.

        Raises:
            FatalError: the frontend must not go on.
        """
        start = Start(self._settings.model_dump_json(), process, self._settings.processes)
        try:
            link = await Link.start(
                start, shared=(self._listener.fileno(), self._memory.fd), hear=self._hear
            )
        except OSError as error:
            if self._stopping.is_set():
                return ""
            self._check_others(process, FatalError(f"cannot start a process: {error.strerror}"))
            return f"before it began ({error.strerror})"
        self._links[process] = link
        if self._stopping.is_set():
            link.send(Stop())
        how = await link.ended()
        del self._links[process]
        # First the counts, then the rows: a row that others may take is empty.
        self._memory.clear(process)
        self._grant(self._rows.ended(process))
        if link.status is not None:
            self._ended.add(link.status.families)
        if self._stopping.is_set():
            return how
        if link.fatal is not None:
            text, status = link.fatal.text, link.fatal.exit_status
            kind = SettingsError if status == SettingsError.exit_status else FatalError
            self._check_others(process, kind(text))
            log.error("process %d: %s", process, text)
        elif not self._all_ready.done():
            raise FatalError(f"kvatlas frontend: process {process} ended {how} before it was ready")
        return how

    def _check_others(self, process: int, error: FatalError) -> None:
        """Raise a process's error if no other one can serve, as if there was only one."""
        able = any(
            link.is_up and link.status is not None and not link.status.obstacles
            for other, link in self._links.items()
            if other != process
        )
        if not able or not self._all_ready.done():
            raise error

    def _hear(self, link: Link, message: Ready | ClaimRow | ReleaseRow) -> None:
        match message:
            case Ready():
                self._not_ready.discard(link.process)
                if not self._not_ready and not self._all_ready.done():
                    self._all_ready.set_result(message.tokenizer)
            case ClaimRow():
                key = WorkerKey(message.worker_id, message.dp_rank)
                self._grant(self._rows.claim((link.process, message.number), key))
            case ReleaseRow():
                self._grant(self._rows.release((link.process, message.number)))

    def _grant(self, grants: Iterable[Grant]) -> None:
        for grant in grants:
            process, number = grant.claim
            link = self._links.get(process)
            if link is not None:
                link.send(GrantRow(number, grant.row))
