"""Two engines of one process that turn out to be one worker: a worker id that was copied.

Where `dp_rank` is left to the engines' events, the settings cannot tell. Each of the two would open
its epochs above the other's, and what the log's claims tell apart are processes: so one engine's
blocks would replace the other's, and nobody would say so.
"""

import asyncio
from collections.abc import Sequence

from kvatlas_chassis import SettingsError
from kvatlas_events import Worker
from kvatlas_publisher.session import Session

_LOOK_S = 0.5


async def watch_twins(sessions: Sequence[Session], *, look_s: float = _LOOK_S) -> None:
    """Look again and again, for engines may be heard of at any time.

    Raises:
        SettingsError: two are one worker; the text names both.
    """
    while True:
        check_twins(sessions)
        await asyncio.sleep(look_s)


def check_twins(sessions: Sequence[Session]) -> None:
    """Compare the sessions whose rank is settled: as configured, or by a first message."""
    known: dict[Worker, Session] = {}
    for session in sessions:
        if session.spec.dp_rank is None and session.follower.stream.last_seq is None:
            continue
        twin = known.setdefault(session.worker, session)
        if twin is not session:
            raise SettingsError(
                f"kvatlas publisher: engines: {twin.spec.events} and {session.spec.events} are "
                f"both worker {session.worker}; use another worker_id for one of them"
            )
