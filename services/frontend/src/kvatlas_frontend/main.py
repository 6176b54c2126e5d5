"""`kvatlas frontend`: OpenAI HTTP in, the worker that holds the prompt's prefix out."""

import datetime as dt
import gc
import sys
from collections.abc import Sequence
from contextlib import aclosing
from pathlib import Path

from kvatlas_chassis import FatalError, StopSignal, announce_ready, run_service
from kvatlas_frontend.assembly import running
from kvatlas_frontend.fleet.source import CellMismatchError
from kvatlas_frontend.indexer import IndexerClient
from kvatlas_frontend.routing.check import check
from kvatlas_frontend.routing.plugins import built_in
from kvatlas_frontend.routing.profile import load_profile
from kvatlas_frontend.settings import FrontendSettings
from kvatlas_frontend.tokens.encoder import Encoder, load_encoder
from kvatlas_frontend.tokens.template import ChatTemplate, load_template

# A tokenizing thread that is done asks for the GIL and gets it at the latest after this: Python's
# own 5 ms would be the largest part of a busy frontend's routing time.
_GIL_SWITCH_S = 0.0005


def command(argv: Sequence[str]) -> int:
    """Run `kvatlas frontend`."""
    return run_service(
        serve,
        FrontendSettings,
        service="frontend",
        argv=argv,
        description="Routes OpenAI requests to the worker that holds their prefix.",
    )


async def serve(settings: FrontendSettings) -> None:
    """Run a frontend until it is told to stop.

    Raises:
        FatalError: a setting cannot work, an address is in use, or the indexers serve another
            cell.
    """
    sys.setswitchinterval(_GIL_SWITCH_S)
    profile = check(load_profile(settings.policy), built_in())
    encoder, template = load_tokenizer(settings.tokenizer)
    # What was loaded so far lives as long as the process: no collection needs to look at it again.
    gc.collect()
    gc.freeze()
    stop = StopSignal()
    async with (
        aclosing(IndexerClient(settings)) as indexers,
        running(settings, profile, indexers, encoder, template) as frontend,
    ):
        announce_ready(
            listen=frontend.api.address,
            admin=frontend.admin.address,
            policy=profile.name,
            tokenizer=frontend.tokenizer,
        )
        try:
            await stop.wait(frontend.tasks)
        except CellMismatchError as error:
            raise FatalError(f"kvatlas frontend: {error}") from None


def load_tokenizer(name: str) -> tuple[Encoder | None, ChatTemplate | None]:
    """The encoder and the chat template that `--tokenizer` names; None for what an engine is asked.

    Raises:
        FatalError: a file is missing or cannot be used; one line names it.
    """
    if name == "engine":
        return None, None
    path = Path(name)
    if not path.is_dir():
        return load_encoder(path), None
    now = dt.datetime.now  # templates print the engine's local time
    return load_encoder(path / "tokenizer.json"), load_template(path, now=now)
