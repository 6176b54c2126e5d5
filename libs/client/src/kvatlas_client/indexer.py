"""The client for threads."""

import time
from collections.abc import Mapping, Sequence
from random import Random
from types import TracebackType
from typing import Self

from kvatlas_client.errors import CallFailed
from kvatlas_client.grpc_sync import GrpcTransport
from kvatlas_client.health import Replicas
from kvatlas_client.native import NativeTransport
from kvatlas_client.query import make_query
from kvatlas_client.settings import (
    DEADLINE_MS,
    STATUS_TIMEOUT_S,
    deadline_in_s,
    make_settings,
)
from kvatlas_client.transport import Backend, Transport
from kvatlas_client.tries import Tries
from kvatlas_client.types import Matches, ReplicaHealth, ReplicaStatus
from kvatlas_hashing import CONTRACT
from kvatlas_hashing.arrays import Hashes, Tokens


class Indexer:
    """Asks a cell's indexer replicas which workers hold a prompt; from any number of threads.

    A question goes to one replica, and to the next if that one fails or takes more than its share of
    the deadline. Use it in a `with` block, or call `close`.
    """

    def __init__(
        self,
        replicas: Sequence[str],
        *,
        model: str = "",
        block_size: int = 0,
        hash_contract: str = CONTRACT,
        deadline_ms: float = DEADLINE_MS,
        backend: Backend = "native",
    ) -> None:
        """Connects when first used.

        Args:
            replicas: addresses, host:port.
            model: the cell's; replicas of another refuse. "": not checked.
            block_size: the cell's tokens per block. 0: not checked, and tokens cannot be hashed.
            hash_contract: the cell's. "": not checked.
            deadline_ms: for one question, all tries together, unless the question says otherwise.
            backend: "native", or "grpc" for grpcio in pure form.

        Raises:
            ValueError: an argument is wrong.
        """
        self._settings = make_settings(
            replicas,
            model=model,
            block_size=block_size,
            hash_contract=hash_contract,
            deadline_ms=deadline_ms,
            backend=backend,
        )
        self._replicas = Replicas(self._settings.replicas, Random())
        # grpcio also makes the calls that are not hot; its channels cost nothing until used.
        self._grpc = GrpcTransport(self._settings.replicas)
        self._transport: Transport = (
            NativeTransport(self._settings.replicas) if backend == "native" else self._grpc
        )
        self._closed = False

    def find_matches(
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
        """Which workers hold how many leading blocks of a prompt.

        Args:
            tokens: uint32[n], or any integers; hashed here as `kvatlas_hashing.chunk_hashes` does.
            chunk_hashes: uint64[d], instead of tokens.
            sequence_hashes: uint64[d], instead of tokens.
            lora_name: with tokens, the adapter.
            cache_salt: with tokens, the salt.
            item_hashes: with tokens, the multimodal items of each full block.
            limit: at most so many workers; 0: all.
            exact: verify every depth, for engines whose sets are not prefix-closed.
            deadline_ms: for this question.

        Raises:
            TypeError, ValueError: an argument is wrong.
            NoReplicaAnswered: route without an answer.
            CellMismatch: a replica serves another model, block size or hash contract.
            QueryRejected: a replica calls the question malformed.
            RuntimeError: the client is closed.
        """
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
        self._check_open()
        deadline_s = (
            self._settings.deadline_s if deadline_ms is None else deadline_in_s(deadline_ms)
        )
        tries = Tries(self._replicas, self._settings.terms, deadline_s, time.monotonic)
        for attempt in tries:
            try:
                matches = self._transport.find_matches(attempt.replica, query, attempt.timeout_s)
            except CallFailed as failure:
                tries.failed(failure)
            else:
                tries.answered(attempt)
                return matches
        raise tries.exhausted()

    def status(self, replica: str, *, timeout_s: float = STATUS_TIMEOUT_S) -> ReplicaStatus:
        """What one replica says of itself. CallFailed: it does not answer."""
        self._check_open()
        if replica not in self._settings.replicas:
            raise ValueError(f"'{replica}' is none of this client's replicas")
        return self._grpc.status(replica, timeout_s)

    def get_status(
        self, *, timeout_s: float = STATUS_TIMEOUT_S
    ) -> Mapping[str, ReplicaStatus | CallFailed]:
        """What every replica says of itself, or why it does not, by address."""
        answers: dict[str, ReplicaStatus | CallFailed] = {}
        for replica in self._settings.replicas:
            try:
                answers[replica] = self.status(replica, timeout_s=timeout_s)
            except CallFailed as failure:
                answers[replica] = failure
        return answers

    def replicas(self) -> list[ReplicaHealth]:
        """What was observed of each replica, in the order of configuration."""
        return self._replicas.observed()

    def close(self) -> None:
        """Give up all connections; further calls raise RuntimeError. May be called twice."""
        if not self._closed:
            self._closed = True
            self._transport.close()
            self._grpc.close()

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeError("the client is closed")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
