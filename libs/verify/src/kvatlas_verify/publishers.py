"""Finds the publishers to compare with: the named ones, and those that settle a disagreement.

A named publisher lists its workers, so a worker that no replica knows is found, too. If one replica
does not know a worker that another replica knows, the worker's publisher is asked as well; its
answer shows which replica is wrong. The other replica knows the publisher's address.
"""

from collections.abc import Callable, Mapping, Sequence

from kvatlas_chassis import HostPort
from kvatlas_verify.rpc import CannotTell, Publisher, Replica
from kvatlas_verify.worker_state import WorkerSummary
from kvatlas_wire import WorkerKey


class PublisherSides:
    """The publisher to ask for each worker.

    Args:
        named: publishers that must answer.
        connect: connects to another publisher.
    """

    def __init__(
        self, named: Sequence[Publisher], connect: Callable[[HostPort], Publisher]
    ) -> None:
        self.by_worker: dict[WorkerKey, Publisher] = {}
        """The publisher of each worker that is compared with its publisher."""
        self.not_asked: dict[WorkerKey, str] = {}
        """Reasons why the publisher of a worker that a replica does not know is not asked."""
        self._named = named
        self._connect = connect

    def find(
        self, replicas: Sequence[Replica], summaries: Sequence[Mapping[WorkerKey, WorkerSummary]]
    ) -> None:
        """Find each worker's publisher, from the lists of publishers and replicas.

        Raises:
            CannotTell: a named publisher does not answer.
        """
        addresses = {
            worker: address
            for replica in replicas
            for worker, address in replica.publishers.items()
            if address
        }
        for publisher in self._named:
            listed = publisher.workers()
            known = [worker for worker, name in addresses.items() if name == publisher.name]
            self.by_worker.update(dict.fromkeys([*known, *listed], publisher))
        workers = {worker for each in summaries for worker in each}
        connected: dict[str, Publisher | str] = {}
        for worker in sorted(workers - self.by_worker.keys()):
            if all(worker in each for each in summaries):
                continue
            address = addresses.get(worker, "")
            if address not in connected:
                connected[address] = self._try_connect(address, worker)
            found = connected[address]
            if isinstance(found, str):
                self.not_asked[worker] = found
            else:
                self.by_worker[worker] = found

    def idle(self) -> list[str]:
        """Return a line per named publisher that speaks for no worker."""
        speaking = {publisher.name for publisher in self.by_worker.values()}
        return [
            f"{publisher.name} speaks for no worker"
            for publisher in self._named
            if publisher.name not in speaking
        ]

    def _try_connect(self, address: str, worker: WorkerKey) -> Publisher | str:
        """Return the publisher at `address`, or why it cannot be asked."""
        if not address:
            return "; the address of its publisher is not known"
        try:
            publisher = self._connect(HostPort.parse(address))
            publisher.summary(worker)
        except (CannotTell, ValueError) as error:
            return f"; its publisher cannot be asked: {error}"
        return publisher
