"""Asks the indexers that records go to directly which epochs they have seen.

A publisher that lost its state directory, or never had one, and whose clock was set back would open
an epoch that they drop as an older one. They know better, so they are asked once at the start, all
at the same time; whoever does not answer soon is gone on without. Other logs are asked for their
claims instead, see `claims.py`.
"""

import asyncio
import logging
from collections.abc import Iterable, Mapping
from typing import TypeAlias

from grpc import aio

from kvatlas_publisher.codec import GET_STATUS, decode_epochs, encode_get_status
from kvatlas_publisher.state_dir import Owner

log = logging.getLogger(__name__)

_Method: TypeAlias = "aio.UnaryUnaryMultiCallable[bytes, bytes]"

ANSWER_S = 1.0
_STATUS_BYTES_MAX = 64 << 20  # a status names every worker of the cell
_OPTIONS = (
    ("grpc.enable_http_proxy", 0),  # a proxy of the environment is for the world outside
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.max_receive_message_length", _STATUS_BYTES_MAX),
)


async def seen_epochs(addresses: Iterable[str], *, answer_s: float = ANSWER_S) -> dict[Owner, int]:
    """Return the highest epoch that any indexer at `addresses` (host:port) follows, per worker.

    It takes `answer_s` seconds at most. An indexer that does not answer is named in the log.
    """
    highest: dict[Owner, int] = {}
    asked = (_epochs_at(address, answer_s) for address in sorted(set(addresses)))
    for epochs in await asyncio.gather(*asked):
        for owner, epoch in epochs.items():
            highest[owner] = max(epoch, highest.get(owner, 0))
    return highest


async def _epochs_at(address: str, answer_s: float) -> Mapping[Owner, int]:
    try:
        async with (
            asyncio.timeout(answer_s),
            aio.insecure_channel(address, options=_OPTIONS) as channel,
        ):
            ask: _Method = channel.unary_unary(GET_STATUS)
            return decode_epochs(await ask(encode_get_status()))
    except aio.AioRpcError as error:
        why = f"{error.code().name}: {error.details()}"
    except TimeoutError:
        why = f"no answer within {answer_s:g} s"
    except ValueError as error:
        why = str(error)
    log.warning(
        "indexer %s does not say which epochs it has seen: %s; going on without", address, why
    )
    return {}
