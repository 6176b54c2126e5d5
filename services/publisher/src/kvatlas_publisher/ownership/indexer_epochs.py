"""Asks the indexers behind `grpc:` logs which epochs they have seen.

A publisher without a state directory, or with an empty one, and whose clock was set back would open
an older epoch, which the indexers drop. So they are asked once at the start, all at the same time,
and the publisher continues without those that do not answer soon. Other logs are asked for their
claims, see `claims.py`.
"""

import asyncio
import logging
from collections.abc import Iterable, Mapping
from typing import TypeAlias

from grpc import aio

from kvatlas_publisher.ownership.codec import GET_STATUS, decode_epochs, encode_get_status
from kvatlas_publisher.state.state_dir import CellWorker
from kvatlas_wire.channel_options import CHANNEL_OPTIONS

log = logging.getLogger(__name__)

_Method: TypeAlias = "aio.UnaryUnaryMultiCallable[bytes, bytes]"

_ANSWER_S = 1.0


async def epochs_at_indexers(addresses: Iterable[str]) -> dict[CellWorker, int]:
    """Return the highest epoch that any indexer at `addresses` (host:port) follows, per worker.

    It takes one second at most. The log names each indexer that does not answer.
    """
    highest: dict[CellWorker, int] = {}
    calls = (_epochs_at(address) for address in sorted(set(addresses)))
    for epochs in await asyncio.gather(*calls):
        for worker, epoch in epochs.items():
            highest[worker] = max(epoch, highest.get(worker, 0))
    return highest


async def _epochs_at(address: str) -> Mapping[CellWorker, int]:
    try:
        async with (
            asyncio.timeout(_ANSWER_S),
            aio.insecure_channel(address, options=CHANNEL_OPTIONS) as channel,
        ):
            get_status: _Method = channel.unary_unary(GET_STATUS)
            return decode_epochs(await get_status(encode_get_status()))
    except aio.AioRpcError as error:
        reason = f"{error.code().name}: {error.details()}"
    except TimeoutError:
        reason = f"no answer within {_ANSWER_S:g} s"
    except ValueError as error:
        reason = str(error)
    log.warning("cannot get the epochs that indexer %s has seen: %s; going on", address, reason)
    return {}
