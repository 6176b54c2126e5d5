"""Which publisher speaks for which worker: those that were named, and those that are needed.

A named publisher lists its workers, so that one which no replica knows is missed. Where a replica
does not know a worker that another one knows, the publisher that the other has heard of it from is
asked too: it says which of the two is wrong.
"""

from collections.abc import Callable, Mapping, Sequence

from kvatlas_chassis import HostPort
from kvatlas_verify.held import Held, Worker
from kvatlas_verify.rpc import CannotTell, Publisher, Replica


class Speakers:
    """Who is asked for whom.

    Args:
        named: publishers that must answer.
        dial: connects to another one.
    """

    def __init__(self, named: Sequence[Publisher], dial: Callable[[HostPort], Publisher]) -> None:
        self.of: dict[Worker, Publisher] = {}
        """Of these workers the publisher is a side of its own."""
        self.silent: dict[Worker, str] = {}
        """Why the publisher of one that a replica does not know was not a side, in words."""
        self._named = named
        self._dial = dial

    def find(self, replicas: Sequence[Replica], asked: Sequence[Mapping[Worker, Held]]) -> None:
        """See who speaks for whom, by what the publishers and the replicas say.

        Raises:
            CannotTell: a named publisher does not answer.
        """
        heard_from = {
            worker: address
            for replica in replicas
            for worker, address in replica.publishers.items()
            if address
        }
        for publisher in self._named:
            listed = publisher.workers()
            theirs = [worker for worker, name in heard_from.items() if name == publisher.name]
            self.of.update(dict.fromkeys([*theirs, *listed], publisher))
        known = {worker for each in asked for worker in each}
        dialled: dict[str, Publisher | str] = {}
        for worker in sorted(known - self.of.keys()):
            if all(worker in each for each in asked):
                continue
            address = heard_from.get(worker, "")
            if address not in dialled:
                dialled[address] = self._reached(address, worker)
            found = dialled[address]
            if isinstance(found, str):
                self.silent[worker] = found
            else:
                self.of[worker] = found

    def idle(self) -> list[str]:
        """Say of each named publisher that speaks for nobody that it does."""
        speaking = {publisher.name for publisher in self.of.values()}
        return [
            f"{publisher.name} speaks for no worker"
            for publisher in self._named
            if publisher.name not in speaking
        ]

    def _reached(self, address: str, worker: Worker) -> Publisher | str:
        """The publisher at `address`, or why it cannot be asked."""
        if not address:
            return "; where its publisher answers is not known"
        try:
            publisher = self._dial(HostPort.parse(address))
            publisher.held(worker)
        except (CannotTell, ValueError) as error:
            return f"; its publisher cannot be asked: {error}"
        return publisher
