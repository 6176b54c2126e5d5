"""Start and end of a service process."""

import asyncio
import json
import logging
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

import uvloop

from kvatlas_chassis.config import ServiceSettings, load_settings
from kvatlas_chassis.errors import FatalError
from kvatlas_chassis.logs import setup_logging
from kvatlas_chassis.tasks import TaskSet

S = TypeVar("S", bound=ServiceSettings)

log = logging.getLogger(__name__)


class StopSignal:
    """Set by the first SIGTERM or SIGINT; a second one kills the process."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, number)

    def _on_signal(self, number: signal.Signals) -> None:
        log.info("stopping on %s", number.name)
        self._event.set()
        loop = asyncio.get_running_loop()
        for other in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(other)
            signal.signal(other, signal.SIG_DFL)

    def ask(self, asker: str) -> None:
        """Stop as after a signal, on the request of another part; signals keep their effect."""
        if not self._event.is_set():
            log.info("stopping on request of %s", asker)
            self._event.set()

    async def wait(self, tasks: TaskSet | None = None) -> None:
        """Wait for the signal, or until a task of `tasks` fails; then raise its error."""
        if tasks is None:
            await self._event.wait()
            return
        stop = asyncio.create_task(self._event.wait())
        failed = asyncio.create_task(tasks.failed())
        try:
            await asyncio.wait({stop, failed}, return_when=asyncio.FIRST_COMPLETED)
            if failed.done():
                failed.result()
        finally:
            stop.cancel()
            failed.cancel()
            await asyncio.gather(stop, failed, return_exceptions=True)


def announce_ready(**facts: object) -> None:
    """Print the only line on stdout: `{"ready": true, "listen": …, "admin": …}`."""
    line = json.dumps({"ready": True} | {name: _plain(fact) for name, fact in facts.items()})
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def run_service(
    serve: Callable[[S], Coroutine[Any, Any, None]],
    settings: type[S],
    *,
    service: str,
    argv: Sequence[str],
    description: str,
) -> int:
    """Read the settings of `kvatlas SERVICE` and run `serve(settings)` on uvloop to its end.

    Returns the exit status. A FatalError ends the process with one line on stderr.
    """
    try:
        loaded = load_settings(
            settings, service=service, argv=argv, environ=os.environ, description=description
        )
        setup_logging(loaded.log_level, loaded.log_format)
        uvloop.run(serve(loaded))
    except FatalError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_status
    return 0


def _plain(fact: object) -> object:
    return fact if isinstance(fact, (str, int, float, bool)) else str(fact)
