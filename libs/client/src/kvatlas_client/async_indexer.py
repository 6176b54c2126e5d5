"""The client for asyncio."""

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from types import TracebackType
from typing import Self

from kvatlas_client.errors import (
    CANCELLED,
    CallFailed,
    IndexerError,
    NoReplicaAnswered,
    find_error,
)
from kvatlas_client.grpc_transport import GrpcControl
from kvatlas_client.query import make_query
from kvatlas_client.settings import (
    DEADLINE_MS,
    STATUS_TIMEOUT_S,
    deadline_in_s,
    make_finder,
    make_seed,
    make_settings,
)
from kvatlas_client.types import ReplicaHealth, ReplicaStatus, WorkersChange
from kvatlas_client.watch import Watch
from kvatlas_hashing import CONTRACT
from kvatlas_hashing.arrays import Hashes, Tokens
from kvatlas_native import ChannelError, Finder, FindMatchesError, Matches
from kvatlas_native.completions import Completions


class AsyncIndexer:
    """Asks a cell's indexer replicas which workers hold a prompt, and follows its workers.

    Like `Indexer`, for the event loop on which it is first used. Use it in an `async with` block, or
    await `close`.
    """

    def __init__(
        self,
        replicas: Sequence[str],
        *,
        model: str = "",
        block_size: int = 0,
        hash_contract: str = CONTRACT,
        deadline_ms: float = DEADLINE_MS,
    ) -> None:
        """Connects when first used; for arguments and errors see `Indexer`."""
        self._settings = make_settings(
            replicas,
            model=model,
            block_size=block_size,
            hash_contract=hash_contract,
            deadline_ms=deadline_ms,
        )
        self._finder = make_finder(self._settings)
        self._completions: Completions[Matches] | None = None
        self._control: GrpcControl | None = None
        self._watch: Watch | None = None
        self._closed = False

    async def find_matches(
        self,
        *,
        tokens: Tokens | None = None,
        chunk_hashes: Hashes | None = None,
        sequence_hashes: Hashes | None = None,
        lora_name: str | None = None,
        cache_salt: str | None = None,
        item_hashes: Sequence[Sequence[int] | None] | None = None,
        limit: int = 0,
        exact: bool = False,
        deadline_ms: float | None = None,
    ) -> Matches:
        """Find the workers that hold leading blocks of a prompt; see `Indexer.find_matches`."""
        query = make_query(
            self._settings.terms,
            tokens=tokens,
            chunk_hashes=chunk_hashes,
            sequence_hashes=sequence_hashes,
            lora_name=lora_name,
            cache_salt=cache_salt,
            item_hashes=item_hashes,
            limit=limit,
            exact=exact,
        )
        completions = self._open_completions()
        deadline_s = (
            self._settings.deadline_s if deadline_ms is None else deadline_in_s(deadline_ms)
        )
        try:
            return await completions.result_of(
                partial(self._finder.find_matches_soon, query, deadline_s)
            )
        except FindMatchesError as error:
            raise self.error_of(error, deadline_s) from error
        except ChannelError as error:  # from `close`
            replicas = self._settings.replicas
            failures = [CallFailed(replica, *error.args) for replica in replicas]
            raise NoReplicaAnswered(deadline_s, failures) from error

    @property
    def finder(self) -> Finder:
        """The native finder, for a data plane that asks without Python; `close` closes it."""
        return self._finder

    def error_of(self, error: FindMatchesError, deadline_s: float) -> IndexerError:
        """The error of this client that a failure of `finder` stands for."""
        return find_error(error, self._settings.terms, deadline_s)

    async def watch_workers(self) -> AsyncGenerator[WorkersChange]:
        """Yield the workers of the cell: all of them first, then every change, for ever.

        When a replica fails or ends its stream, another replica's stream follows, which begins with
        all workers again. While no replica answers it waits; `watching` is None then. It ends when
        the client is closed.

        Raises:
            CellMismatch: a replica serves another model, block size or hash contract.
            RuntimeError: the client is closed.
        """
        watch = Watch(self._open_control(), self._settings, make_seed(), time.monotonic)
        self._watch = watch
        async with aclosing(watch.changes()) as changes:
            async for change in changes:
                yield change

    @property
    def watching(self) -> str | None:
        """Address of the replica that `watch_workers` follows; None while there is none."""
        return self._watch.replica if self._watch is not None else None

    async def status(self, replica: str, *, timeout_s: float = STATUS_TIMEOUT_S) -> ReplicaStatus:
        """Ask one replica for its status. CallFailed: it does not answer."""
        if replica not in self._settings.replicas:
            raise ValueError(f"'{replica}' is none of this client's replicas")
        return await self._open_control().status(replica, timeout_s)

    async def get_status(
        self, *, timeout_s: float = STATUS_TIMEOUT_S
    ) -> Mapping[str, ReplicaStatus | CallFailed]:
        """Ask every replica at once for its status; the answer or the failure, by address."""

        async def ask(replica: str) -> ReplicaStatus | CallFailed:
            try:
                return await self.status(replica, timeout_s=timeout_s)
            except CallFailed as failure:
                return failure

        replicas = self._settings.replicas
        answers = await asyncio.gather(*(ask(replica) for replica in replicas))
        return dict(zip(replicas, answers, strict=True))

    def replicas(self) -> list[ReplicaHealth]:
        """Return this client's observations of each replica, in the order of configuration."""
        return [ReplicaHealth(*observed) for observed in self._finder.replicas()]

    async def close(self) -> None:
        """Close all connections and streams; further calls raise RuntimeError. May be repeated."""
        self._closed = True
        self._finder.close()
        completions, self._completions = self._completions, None
        control, self._control = self._control, None
        if completions is not None:
            completions.close(ChannelError(CANCELLED, "the client is closed"))
        if control is not None:
            await control.close()

    def _open_completions(self) -> Completions[Matches]:
        self._check_open()
        if self._completions is None:
            self._completions = Completions()
        return self._completions

    def _open_control(self) -> GrpcControl:
        self._check_open()
        if self._control is None:
            self._control = GrpcControl(self._settings.replicas)
        return self._control

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeError("the client is closed")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()
