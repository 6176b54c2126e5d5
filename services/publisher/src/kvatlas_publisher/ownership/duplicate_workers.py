"""Finds two engines of one process that are the same worker, because a worker id was copied.

Without `dp_rank` in the settings, the engines' events name it, so the settings cannot show this
mistake. Each of the two would open epochs above the other's and replace its blocks, and nothing else
would detect it: claims in the logs distinguish processes only.
"""

import asyncio
from collections.abc import Sequence

from kvatlas_chassis import SettingsError
from kvatlas_events import WorkerKey
from kvatlas_publisher.worker_publisher import WorkerPublisher

_CHECK_S = 0.5


async def watch_duplicate_workers(publishers: Sequence[WorkerPublisher]) -> None:
    """Check twice a second, because an engine's first event may come at any time.

    Raises:
        SettingsError: two engines are one worker; the text names both.
    """
    while True:
        check_duplicate_workers(publishers)
        await asyncio.sleep(_CHECK_S)


def check_duplicate_workers(publishers: Sequence[WorkerPublisher]) -> None:
    """Compare the workers whose rank is known, from a setting or a first message.

    Raises:
        SettingsError: two engines are one worker; the text names both.
    """
    known: dict[WorkerKey, WorkerPublisher] = {}
    for publisher in publishers:
        spec = publisher.context.spec
        if spec.dp_rank is None and publisher.follower.sequencer.last_seq is None:
            continue
        first = known.setdefault(publisher.worker, publisher)
        if first is not publisher:
            raise SettingsError(
                f"kvatlas publisher: engines: {first.context.spec.events} and {spec.events} are "
                f"both worker {publisher.worker}; use another worker_id for one of them"
            )
