"""The client for threads."""

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self

from kvatlas_client.errors import CallFailed, find_error
from kvatlas_client.grpc_transport import GrpcStatus
from kvatlas_client.query import make_query
from kvatlas_client.settings import (
    DEADLINE_MS,
    STATUS_TIMEOUT_S,
    deadline_in_s,
    make_finder,
    make_settings,
)
from kvatlas_client.types import ReplicaHealth, ReplicaStatus
from kvatlas_hashing import CONTRACT
from kvatlas_hashing.arrays import Hashes, Tokens
from kvatlas_native import FindMatchesError, Matches


class Indexer:
    """Asks a cell's indexer replicas which workers hold a prompt; from any number of threads.

    A query goes to one replica, and to the next one if that fails or takes more than its share of the
    deadline. Use it in a `with` block, or call `close`.
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
        """Connects when first used.

        Args:
            replicas: addresses, host:port.
            model: model of the cell; replicas that serve another one refuse. "": not checked.
            block_size: tokens per block in the cell. 0: not checked, and tokens cannot be hashed.
            hash_contract: hash contract of the cell. "": not checked.
            deadline_ms: default deadline of a query with all its attempts, in milliseconds.

        Raises:
            ValueError: an argument is wrong.
        """
        self._settings = make_settings(
            replicas,
            model=model,
            block_size=block_size,
            hash_contract=hash_contract,
            deadline_ms=deadline_ms,
        )
        self._finder = make_finder(self._settings)
        self._grpc = GrpcStatus(self._settings.replicas)
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
        """Find the workers that hold leading blocks of a prompt.

        Args:
            tokens: uint32[n], or any integers; hashed here by `kvatlas_hashing.chunk_hashes`.
            chunk_hashes: uint64[d], instead of tokens.
            sequence_hashes: uint64[d], instead of tokens.
            lora_name: LoRA adapter, only with tokens.
            cache_salt: cache salt, only with tokens.
            item_hashes: multimodal items of each full block, only with tokens.
            limit: largest number of workers in the answer; 0: all.
            exact: verify every depth, for engines whose sets are not prefix-closed.
            deadline_ms: deadline of this query, in milliseconds.

        Raises:
            TypeError, ValueError: an argument is wrong.
            NoReplicaAnswered: route without an answer.
            CellMismatch: a replica serves another model, block size or hash contract.
            QueryRejected: a replica calls the query malformed.
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
        try:
            return self._finder.find_matches(query, deadline_s)
        except FindMatchesError as error:
            raise find_error(error, self._settings.terms, deadline_s) from error

    def status(self, replica: str, *, timeout_s: float = STATUS_TIMEOUT_S) -> ReplicaStatus:
        """Ask one replica for its status. CallFailed: it does not answer."""
        self._check_open()
        if replica not in self._settings.replicas:
            raise ValueError(f"'{replica}' is none of this client's replicas")
        return self._grpc.status(replica, timeout_s)

    def get_status(
        self, *, timeout_s: float = STATUS_TIMEOUT_S
    ) -> Mapping[str, ReplicaStatus | CallFailed]:
        """Ask every replica for its status; the answer or the failure, by address."""
        answers: dict[str, ReplicaStatus | CallFailed] = {}
        for replica in self._settings.replicas:
            try:
                answers[replica] = self.status(replica, timeout_s=timeout_s)
            except CallFailed as failure:
                answers[replica] = failure
        return answers

    def replicas(self) -> list[ReplicaHealth]:
        """Return this client's observations of each replica, in the order of configuration."""
        return [ReplicaHealth(*observed) for observed in self._finder.replicas()]

    def close(self) -> None:
        """Close all connections; further calls raise RuntimeError. May be called twice."""
        if not self._closed:
            self._closed = True
            self._finder.close()
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
