"""The two kinds of side: a replica, read by `Dump`, and a publisher, read by `Snapshot`."""

from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass

import grpc
import numpy as np
from google.protobuf.message import DecodeError

from kvatlas_chassis import HostPort
from kvatlas_verify.arrow import Row, Unreadable, rows
from kvatlas_verify.worker_state import (
    Digest,
    Hashes,
    Position,
    WorkerHashes,
    WorkerSummary,
    digest_of,
)
from kvatlas_wire import FrameError, Tier, WorkerKey, open_record
from kvatlas_wire.channel_options import CHANNEL_OPTIONS
from kvatlas_wire.v1 import events_pb2 as events
from kvatlas_wire.v1 import indexer_pb2 as indexer
from kvatlas_wire.v1 import indexer_pb2_grpc, publisher_pb2, publisher_pb2_grpc

_NOT_LISTED = "has just learnt of it"


class CannotTell(Exception):  # noqa: N818 - named for what it is
    """A side gives no comparable answer; the message names the side and the reason."""


@dataclass(frozen=True, slots=True)
class Terms:
    """Settings that are equal in a whole cell."""

    cell: str
    model: str
    block_size: int
    hash_contract: str

    def __str__(self) -> str:
        return (
            f"cell {self.cell}, model {self.model}, blocks of {self.block_size} tokens, "
            f"hash contract {self.hash_contract}"
        )


class Replica:
    """One indexer. Every call may raise `CannotTell`."""

    def __init__(self, address: HostPort, *, timeout_s: float) -> None:
        self.name = str(address)
        self._timeout_s = timeout_s
        self._channel = grpc.insecure_channel(self.name, options=CHANNEL_OPTIONS)
        self._stub: indexer_pb2_grpc.IndexerStub = indexer_pb2_grpc.IndexerStub(self._channel)
        self.publishers: dict[WorkerKey, str] = {}
        """Address of each worker's publisher, from the last `summaries`."""

    def close(self) -> None:
        """Close the connection."""
        self._channel.close()

    def terms(self) -> Terms:
        """Return the terms of its cell; it must be ready."""
        status = self._status()
        if not status.ready:
            raise CannotTell(f"{self.name} is not ready")
        return Terms(status.cell, status.model, status.block_size, status.hash_contract)

    def summaries(self, workers: Collection[WorkerKey] | None) -> dict[WorkerKey, WorkerSummary]:
        """Return counts and digests of these workers, or of all, summed from its tables."""
        if workers is not None and not workers:
            return {}  # a request without names asks for all
        problems = self._problems()
        summed: dict[WorkerKey, tuple[Position, dict[str, Digest]]] = {}
        for row in self._dump(workers, digests=True):
            worker = WorkerKey(row.worker_id, row.dp_rank)
            tiers = summed.setdefault(worker, (Position(row.epoch, row.event_id), {}))[1]
            if row.blocks:
                tiers[row.tier] = Digest(row.blocks, row.digest)
        return {
            worker: WorkerSummary(position, tiers, problems.get(worker, _NOT_LISTED))
            for worker, (position, tiers) in summed.items()
        }

    def hashes(self, workers: Collection[WorkerKey]) -> dict[WorkerKey, WorkerHashes]:
        """Return all hashes of these workers, as far as it knows them."""
        positions: dict[WorkerKey, Position] = {}
        parts: dict[WorkerKey, dict[str, list[Hashes]]] = {}
        for row in self._dump(workers, digests=False) if workers else ():
            worker = WorkerKey(row.worker_id, row.dp_rank)
            positions[worker] = Position(row.epoch, row.event_id)
            tiers = parts.setdefault(worker, defaultdict(list))
            tiers[row.tier].append(row.sequence_hashes)
        return {
            worker: WorkerHashes(position, _joined(parts[worker]))
            for worker, position in positions.items()
        }

    def _problems(self) -> dict[WorkerKey, str]:
        """Return why workers are incomplete by its own account. A silent one keeps its state."""
        status = self._status()
        self.publishers = {
            _worker(each.info.worker): each.info.publisher_rpc for each in status.workers
        }
        return {_worker(each.info.worker): _problem(each) for each in status.workers}

    def _status(self) -> indexer.GetStatusResponse:
        try:
            return self._stub.GetStatus(indexer.GetStatusRequest(), timeout=self._timeout_s)
        except grpc.RpcError as error:
            raise _cannot_tell(self.name, error) from error

    def _dump(self, workers: Collection[WorkerKey] | None, *, digests: bool) -> Iterator[Row]:
        named = [events.Worker(worker_id=w, dp_rank=r) for w, r in workers or ()]
        request = indexer.DumpRequest(workers=named, digests=digests)
        call = self._stub.Dump(request, timeout=self._timeout_s)
        try:
            yield from rows(message.arrow_ipc for message in call)
        except grpc.RpcError as error:
            raise _cannot_tell(self.name, error) from error
        except Unreadable as error:
            raise CannotTell(f"{self.name}: its dump cannot be read: {error}") from error
        finally:
            call.cancel()


class Publisher:
    """One publisher. Every call may raise `CannotTell`."""

    def __init__(self, address: HostPort, *, timeout_s: float) -> None:
        self.name = str(address)
        self._timeout_s = timeout_s
        self._channel = grpc.insecure_channel(self.name, options=CHANNEL_OPTIONS)
        self._stub = publisher_pb2_grpc.PublisherStub(self._channel)

    def close(self) -> None:
        """Close the connection."""
        self._channel.close()

    def workers(self) -> list[WorkerKey]:
        """Return the workers that the publisher lists."""
        try:
            answer = self._stub.ListWorkers(
                publisher_pb2.ListWorkersRequest(), timeout=self._timeout_s
            )
        except grpc.RpcError as error:
            raise _cannot_tell(self.name, error) from error
        return [_worker(each) for each in answer.workers]

    def summary(self, worker: WorkerKey) -> WorkerSummary | None:
        """Return counts and digests of its mirror, summed from the hashes; None: not its worker.

        Raises:
            CannotTell: also if the hashes do not match its own digests.
        """
        sums: dict[str, Digest] = dict.fromkeys(Tier, Digest(0, 0))
        last = None
        for snapshot in self._snapshot(worker):
            tier = _tier(snapshot[1].tier)
            part = digest_of(_hashes(snapshot[1]))
            sums[tier] = Digest(sums[tier].blocks + part.blocks, sums[tier].xor ^ part.xor)
            last = snapshot
        if last is None:
            return None
        epoch, part = last
        held = {tier: digest for tier, digest in sums.items() if digest.blocks}
        stated = {_tier(d.tier): Digest(d.blocks, d.digest) for d in part.digests if d.blocks}
        if held != stated:
            raise CannotTell(f"{self.name}: its snapshot of {worker} does not match its digests")
        return WorkerSummary(Position(epoch, part.as_of_event_id), held)

    def hashes(self, worker: WorkerKey) -> WorkerHashes | None:
        """Return all hashes of one worker; None: not its worker."""
        position = None
        parts: dict[str, list[Hashes]] = defaultdict(list)
        for epoch, snapshot in self._snapshot(worker):
            position = Position(epoch, snapshot.as_of_event_id)
            parts[_tier(snapshot.tier)].append(_hashes(snapshot))
        return None if position is None else WorkerHashes(position, _joined(parts))

    def _snapshot(self, worker: WorkerKey) -> Iterator[tuple[int, events.Snapshot]]:
        asked = events.Worker(worker_id=worker.worker_id, dp_rank=worker.dp_rank)
        request = publisher_pb2.SnapshotRequest(worker=asked)
        call = self._stub.Snapshot(request, timeout=self._timeout_s)
        try:
            for message in call:
                for record in message.records:
                    batch = events.Batch.FromString(open_record(record))
                    if batch.snapshot.tier not in events.Tier.values():
                        raise CannotTell(f"{self.name}: its snapshot names an unknown tier")
                    yield batch.header.epoch, batch.snapshot
        except grpc.RpcError as error:
            if error.code() is not grpc.StatusCode.NOT_FOUND:
                raise _cannot_tell(self.name, error) from error
        except (FrameError, DecodeError) as error:
            raise CannotTell(f"{self.name}: its snapshot cannot be read: {error}") from error
        finally:
            call.cancel()


def _joined(parts: dict[str, list[Hashes]]) -> dict[str, Hashes]:
    return {tier: np.unique(np.concatenate(arrays)) for tier, arrays in parts.items()}


def _hashes(snapshot: events.Snapshot) -> Hashes:
    return np.fromiter(snapshot.sequence_hashes, np.uint64, len(snapshot.sequence_hashes))


def _tier(number: "events.Tier.ValueType") -> Tier:
    return list(Tier)[max(number, 1) - 1]  # the one part of an empty set names no tier


def _worker(message: events.Worker) -> WorkerKey:
    return WorkerKey(message.worker_id, message.dp_rank)


def _problem(status: indexer.WorkerStatus) -> str:
    if status.info.state == indexer.WORKER_STATE_OVER_BUDGET:
        return "has no memory for it"
    recovers = status.info.state == indexer.WORKER_STATE_RECOVERING
    return "is not whole" if recovers or status.incomplete else ""


def _cannot_tell(name: str, error: grpc.RpcError) -> CannotTell:
    return CannotTell(f"{name}: {error.code().name}: {error.details()}")
