"""The two kinds of side: a replica by `Dump`, a publisher by `Snapshot`. Both stream."""

from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass

import grpc
import numpy as np
from google.protobuf.message import DecodeError

from kvatlas_chassis import HostPort
from kvatlas_verify.arrow import Row, Unreadable, rows
from kvatlas_verify.held import TIERS, Digest, Hashes, Held, Sets, Worker, digest_of
from kvatlas_wire import FrameError, open_record
from kvatlas_wire.v1 import events_pb2 as events
from kvatlas_wire.v1 import indexer_pb2 as indexer
from kvatlas_wire.v1 import indexer_pb2_grpc, publisher_pb2, publisher_pb2_grpc

_NOT_LISTED = "has just come to know it"
_OPTIONS = (
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_receive_message_length", 64 << 20),  # a status names every worker of the cell
)


class CannotTell(Exception):  # noqa: N818 - named for what it is
    """A side gives no answer that could be compared; the message names it and says why."""


@dataclass(frozen=True, slots=True)
class Terms:
    """What a replica's cell speaks."""

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
    """One indexer. Errors of all calls: `CannotTell`."""

    def __init__(self, address: HostPort, *, timeout_s: float) -> None:
        self.name = str(address)
        self._timeout_s = timeout_s
        self._channel = grpc.insecure_channel(self.name, options=_OPTIONS)
        self._stub: indexer_pb2_grpc.IndexerStub = indexer_pb2_grpc.IndexerStub(self._channel)
        self.publishers: dict[Worker, str] = {}
        """Where each worker's publisher answers, by the last `held`."""

    def close(self) -> None:
        """Let go of the connection."""
        self._channel.close()

    def terms(self) -> Terms:
        """What it speaks; it must be ready."""
        status = self._status()
        if not status.ready:
            raise CannotTell(f"{self.name} is not ready")
        return Terms(status.cell, status.model, status.block_size, status.hash_contract)

    def held(self, workers: Collection[Worker] | None) -> dict[Worker, Held]:
        """Counts and digests of these workers, or of all, as its tables add up."""
        if workers is not None and not workers:
            return {}  # no names would ask for all
        lacking = self._lacking()
        summed: dict[Worker, tuple[int, int, dict[str, Digest]]] = {}
        for row in self._dump(workers, digests=True):
            worker = Worker(row.worker_id, row.dp_rank)
            tiers = summed.setdefault(worker, (row.epoch, row.event_id, {}))[2]
            if row.blocks:
                tiers[row.tier] = Digest(row.blocks, row.digest)
        return {
            worker: Held(epoch, event_id, tiers, lacking.get(worker, _NOT_LISTED))
            for worker, (epoch, event_id, tiers) in summed.items()
        }

    def sets(self, workers: Collection[Worker]) -> dict[Worker, Sets]:
        """Every hash of these workers; of those that it knows."""
        places: dict[Worker, tuple[int, int]] = {}
        parts: dict[Worker, dict[str, list[Hashes]]] = {}
        for row in self._dump(workers, digests=False) if workers else ():
            worker = Worker(row.worker_id, row.dp_rank)
            places[worker] = (row.epoch, row.event_id)
            tiers = parts.setdefault(worker, defaultdict(list))
            tiers[row.tier].append(row.sequence_hashes)
        return {worker: Sets(place, _joined(parts[worker])) for worker, place in places.items()}

    def _lacking(self) -> dict[Worker, str]:
        """What is wrong with each by its own words. A silent one is as whole as it was."""
        status = self._status()
        self.publishers = {
            _worker(each.info.worker): each.info.publisher_rpc for each in status.workers
        }
        return {_worker(each.info.worker): _lacks(each) for each in status.workers}

    def _status(self) -> indexer.GetStatusResponse:
        try:
            return self._stub.GetStatus(indexer.GetStatusRequest(), timeout=self._timeout_s)
        except grpc.RpcError as error:
            raise _cannot_tell(self.name, error) from error

    def _dump(self, workers: Collection[Worker] | None, *, digests: bool) -> Iterator[Row]:
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
    """One publisher. Errors of all calls: `CannotTell`."""

    def __init__(self, address: HostPort, *, timeout_s: float) -> None:
        self.name = str(address)
        self._timeout_s = timeout_s
        self._channel = grpc.insecure_channel(self.name, options=_OPTIONS)
        self._stub = publisher_pb2_grpc.PublisherStub(self._channel)

    def close(self) -> None:
        """Let go of the connection."""
        self._channel.close()

    def workers(self) -> list[Worker]:
        """Whom it speaks for."""
        try:
            answer = self._stub.ListWorkers(
                publisher_pb2.ListWorkersRequest(), timeout=self._timeout_s
            )
        except grpc.RpcError as error:
            raise _cannot_tell(self.name, error) from error
        return [_worker(each) for each in answer.workers]

    def held(self, worker: Worker) -> Held | None:
        """Counts and digests of its mirror, added up from the hashes; None: not its worker.

        Raises:
            CannotTell: also if the hashes are not what its own digests say.
        """
        sums: dict[str, Digest] = dict.fromkeys(TIERS, Digest(0, 0))
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
            raise CannotTell(f"{self.name}: its snapshot of {worker} is not what its digests say")
        return Held(epoch, part.as_of_event_id, held)

    def sets(self, worker: Worker) -> Sets | None:
        """Every hash of one worker; None: not its worker."""
        place = None
        parts: dict[str, list[Hashes]] = defaultdict(list)
        for epoch, snapshot in self._snapshot(worker):
            place = (epoch, snapshot.as_of_event_id)
            parts[_tier(snapshot.tier)].append(_hashes(snapshot))
        return None if place is None else Sets(place, _joined(parts))

    def _snapshot(self, worker: Worker) -> Iterator[tuple[int, events.Snapshot]]:
        asked = events.Worker(worker_id=worker.worker_id, dp_rank=worker.dp_rank)
        request = publisher_pb2.SnapshotRequest(worker=asked)
        call = self._stub.Snapshot(request, timeout=self._timeout_s)
        try:
            for message in call:
                for record in message.records:
                    batch = events.Batch.FromString(open_record(record))
                    if batch.snapshot.tier not in events.Tier.values():
                        raise CannotTell(f"{self.name}: its snapshot is of a tier that is none")
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


def _tier(number: "events.Tier.ValueType") -> str:
    return TIERS[max(number, 1) - 1]  # the one part of an empty set names no tier


def _worker(message: events.Worker) -> Worker:
    return Worker(message.worker_id, message.dp_rank)


def _lacks(status: indexer.WorkerStatus) -> str:
    if status.info.state == indexer.WORKER_STATE_OVER_BUDGET:
        return "is left out, for it has no memory for it"
    recovers = status.info.state == indexer.WORKER_STATE_RECOVERING
    return "is not whole" if recovers or status.incomplete else ""


def _cannot_tell(name: str, error: grpc.RpcError) -> CannotTell:
    return CannotTell(f"{name}: {error.code().name}: {error.details()}")
