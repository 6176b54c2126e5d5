"""`kvatlas frontend`: sends each OpenAI request to the worker that holds its prefix."""

import datetime as dt
import gc
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Final

from kvatlas_chassis import FatalError, StopSignal, announce_ready, run_service
from kvatlas_frontend import policy_check
from kvatlas_frontend.assembly import Frontend, ProcessPart, running
from kvatlas_frontend.fleet.engine_tls import load_tls
from kvatlas_frontend.fleet.watch import CellMismatchError
from kvatlas_frontend.indexer_client import IndexerClient
from kvatlas_frontend.memory import trim
from kvatlas_frontend.processes.supervisor import supervise
from kvatlas_frontend.routing.check import check
from kvatlas_frontend.routing.installed import all_plugins
from kvatlas_frontend.routing.profile import load_profile
from kvatlas_frontend.settings import FrontendSettings
from kvatlas_frontend.tokens.chat_template import ChatTemplate, load_template
from kvatlas_frontend.tokens.encoder import Encoder, load_encoder

_DESCRIPTION: Final = (
    "Serve the OpenAI API; send each request to the worker that holds its prefix. With --check "
    "--policy POLICY [--json]: tell what is wrong with the policy, as a table or as JSON, and exit "
    "with status 0 (nothing) or 2."
)

# The longest that a tokenizing thread waits for the GIL. Python's default of 5 ms would be the
# largest part of a busy frontend's routing time.
_GIL_SWITCH_S = 0.0005


def command(argv: Sequence[str]) -> int:
    """Run `kvatlas frontend`."""
    if policy_check.FLAG in argv:
        return policy_check.check_policy(argv, description=_DESCRIPTION)
    return run_service(
        serve, FrontendSettings, service="frontend", argv=argv, description=_DESCRIPTION
    )


async def serve(settings: FrontendSettings) -> None:
    """Run a frontend until it is told to stop.

    Raises:
        FatalError: a setting cannot work, an address is in use, or the indexers serve another
            cell.
    """
    if settings.processes > 1:
        policy = check(load_profile(settings.policy), all_plugins()).name
        load_tls(settings)  # each process does; here a bad file ends the start with one line
        await supervise(settings, policy=policy)
        return
    stop = StopSignal()
    async with loaded_and_running(settings) as frontend:
        announce_ready(
            listen=frontend.api.address,
            admin=frontend.admin.address,
            policy=frontend.policy,
            tokenizer=frontend.tokenizer,
        )
        await until_stopped(stop, frontend)


@asynccontextmanager
async def loaded_and_running(
    settings: FrontendSettings, part: ProcessPart | None = None
) -> AsyncGenerator[Frontend]:
    """Load what the settings name, and run the frontend of this process.

    `part`: what it shares with the other processes; None: there are none.

    Raises:
        FatalError: a setting cannot work, or an address is in use.
    """
    sys.setswitchinterval(_GIL_SWITCH_S)
    profile = check(load_profile(settings.policy), all_plugins())
    encoder, template = load_tokenizer(settings.tokenizer)
    # Objects loaded so far live as long as the process, so the collector need not scan them again.
    gc.collect()
    gc.freeze()
    trim()  # 70 MiB of 270, which the tokenizer's self-check has left behind
    async with (
        aclosing(IndexerClient(settings)) as indexers,
        running(
            settings, profile, indexers, encoder, template, native=indexers, part=part
        ) as frontend,
    ):
        yield frontend


async def until_stopped(stop: StopSignal, frontend: Frontend) -> None:
    """Wait for the signal.

    Raises:
        FatalError: the indexers serve another cell.
    """
    try:
        await stop.wait(frontend.tasks)
    except CellMismatchError as error:
        raise FatalError(f"kvatlas frontend: {error}") from None


def load_tokenizer(name: str) -> tuple[Encoder | None, ChatTemplate | None]:
    """The encoder and the chat template that `--tokenizer` names; None: an engine does that part.

    Raises:
        FatalError: a file is missing or cannot be used; one line names it.
    """
    if name == "engine":
        return None, None
    path = Path(name)
    if not path.is_dir():
        return load_encoder(path), None
    now = dt.datetime.now  # a template may print the local time
    return load_encoder(path / "tokenizer.json"), load_template(path, now=now)
