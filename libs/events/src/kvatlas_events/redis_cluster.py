"""A Redis Cluster, as the log's writer and reader talk to it: one shard of the log, one slot.

The client library's cluster client finds out which node has which slot. The nodes are talked to
like single servers, each shard's commands at its slot's node, for what the log needs is not what a
cluster client does by itself: commands of one slot at once, reads that wait for seconds on
connections of their own, and no retries that are not ours.

A node that does not answer or has other slots by now makes the next call ask again who has what,
though not more often than twice a second: a thousand deliveries may be trying at once.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

from redis.asyncio.cluster import ClusterNode
from redis.asyncio.cluster import RedisCluster as Topology
from redis.exceptions import AskError, RedisClusterException, RedisError

from kvatlas_events.log import LogUnavailable
from kvatlas_events.redis_layout import Command, Home, Reply, home_of_one, identity_key
from kvatlas_events.redis_server import ANSWER_S, Elsewhere, RedisServer, unusable
from kvatlas_events.redis_url import Address, RedisUrl

_LOOK_S = 0.5
_NODE_S = 2.0
"""For one node to say who has what; then the next one is asked."""


class RedisCluster:
    """Lazily connected nodes; several tasks may call them.

    Raises:
        ValueError: the URL cannot be used.
    """

    def __init__(self, url: RedisUrl, *, answer_s: float = ANSWER_S) -> None:
        self.name = url.name
        self.shards = url.shards
        self._url = url
        self._answer_s = answer_s
        # One is made at once: it checks the URL.
        self._servers = {each: self._server(each) for each in url.addresses[:1]}
        self._begin = list(url.addresses)
        self._keys: list[str] = []
        self._owners: dict[str, Address] = {}
        self._doubted = True
        self._looking: asyncio.Task[None] | None = None
        self._looked_s = 0.0
        self._connections_before = 0

    @property
    def connections(self) -> int:
        """Another number than before: a connection to some node has been made."""
        servers = self._servers.values()
        return self._connections_before + sum(server.connections for server in servers)

    def homes(self, cell: str) -> list[Home]:
        """Return where the shards of a cell's log lie: each in a slot of its own.

        Raises:
            ValueError: the cell's name would put a shard's keys into different slots.
        """
        if set(cell) & set("{}"):
            raise ValueError(f"{self.name}: in a cluster a cell's name has no braces: {cell!r}")
        self._keys = [identity_key(cell, shard) for shard in range(self.shards)]
        return [
            home_of_one(ClusterSlot(self, key), cell, self.shards, shard)
            for shard, key in enumerate(self._keys)
        ]

    async def owner(self, key: str) -> RedisServer:
        """Return the node that has the key's slot, as far as is known.

        Raises:
            LogUnavailable: no node says who has what, or none has it.
        """
        now_s = asyncio.get_running_loop().time()
        if self._doubted and (key not in self._owners or now_s - self._looked_s > _LOOK_S):
            if self._looking is None:
                self._looking = asyncio.create_task(self._look())
                self._looking.add_done_callback(self._looked)
            await asyncio.shield(self._looking)
        if key not in self._owners:
            self._doubted = True
            raise LogUnavailable(f"{self.name}: no node has the slot of {key}")
        address = self._owners[key]
        if address not in self._servers:
            self._servers[address] = self._server(address)
        return self._servers[address]

    def doubt(self) -> None:
        """Ask who has what before one of the next calls."""
        self._doubted = True

    def move(self, key: str, address: Address) -> None:
        """Take a node's word for who has the key now."""
        self._owners[key] = address

    def unusable(self, error: Exception) -> LogUnavailable:
        """Put what some node answered into words."""
        self.doubt()
        return unusable(self.name, error, answer_s=self._answer_s)

    async def close(self) -> None:
        """Close all connections."""
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.wait([self._looking])
        await _close(self._servers.values())

    def _server(self, address: Address) -> RedisServer:
        return RedisServer(self._url, node=address, answer_s=self._answer_s)

    def _looked(self, looking: asyncio.Task[None]) -> None:
        self._looking = None
        if not looking.cancelled():
            looking.exception()  # whoever waited for it has it, or is gone

    async def _look(self) -> None:
        """Ask the nodes in turn which of them has which slot."""
        first, *others = self._begin
        topology: Any = Topology.from_url(
            self._url.at(first),
            startup_nodes=[ClusterNode(*each) for each in others],
            dynamic_startup_nodes=False,
            require_full_coverage=False,
            protocol=2,
            socket_connect_timeout=_NODE_S,
            socket_timeout=_NODE_S,
        )
        nodes: Any = topology.nodes_manager
        try:
            async with asyncio.timeout(self._answer_s):
                await nodes.initialize()
            owners: dict[int, Sequence[ClusterNode]] = nodes.slots_cache
            slots = {key: topology.keyslot(key) for key in self._keys}
            self._owners = {
                key: _address(owners[slot][0]) for key, slot in slots.items() if slot in owners
            }
            named = [_address(node) for node in nodes.nodes_cache.values()]
        except (RedisError, RedisClusterException, OSError) as error:
            raise self._unreachable(error) from error
        finally:
            await nodes.aclose()
            await nodes.aclose("startup_nodes")
        self._begin = list(dict.fromkeys([*named, *self._url.addresses]))
        self._looked_s = asyncio.get_running_loop().time()
        self._doubted = False
        await self._forget()

    async def _forget(self) -> None:
        """Close the connections to nodes that have none of the log's slots any more."""
        unused = set(self._servers).difference(self._owners.values())
        servers = [self._servers.pop(address) for address in unused]
        self._connections_before += sum(server.connections for server in servers)
        await _close(servers)

    def _unreachable(self, error: Exception) -> LogUnavailable:
        """Put into words what the node said that was asked last; the library's hide it."""
        cause = error.__cause__
        if isinstance(error, RedisClusterException) and isinstance(cause, Exception):
            error = cause
            refusal = error.__context__
            if isinstance(error, RedisClusterException) and isinstance(refusal, RedisError):
                error = refusal
        if "cluster support disabled" in str(error):
            return LogUnavailable(f"{self.name} is no cluster; write redis:// for a single server")
        return unusable(self.name, error, answer_s=self._answer_s)


class ClusterSlot:
    """A `Place` in a cluster: whichever node has the slot of `key`."""

    def __init__(self, cluster: RedisCluster, key: str) -> None:
        self._cluster = cluster
        self._key = key

    @property
    def name(self) -> str:
        """As of `Place`."""
        return self._cluster.name

    @property
    def connections(self) -> int:
        """As of `Place`; of all nodes, for a slot may have moved to any."""
        return self._cluster.connections

    async def call(self, *command: str | bytes | int, wait_s: float = 0.0) -> Reply:
        """As of `Place`."""
        return await self._follow(lambda server: server.call(*command, wait_s=wait_s))

    async def call_together(self, commands: Sequence[Command], *, atomic: bool) -> list[Reply]:
        """As of `Place`; a slot that moved meanwhile gets all of them again at its new node."""

        async def ask(server: RedisServer) -> list[Reply]:
            replies = await server.call_together(commands, atomic=atomic)
            for reply in replies:
                if isinstance(reply, AskError):
                    raise server.unusable(reply) from reply
            return replies

        return await self._follow(ask)

    def unusable(self, error: Exception) -> LogUnavailable:
        """As of `Place`."""
        return self._cluster.unusable(error)

    async def _follow(self, ask: Callable[[RedisServer], Awaitable[Reply]]) -> Reply:
        try:
            return await self._once(ask)
        except Elsewhere as error:
            if error.address is None:
                raise
            self._cluster.move(self._key, error.address)
        return await self._once(ask)

    async def _once(self, ask: Callable[[RedisServer], Awaitable[Reply]]) -> Reply:
        server = await self._cluster.owner(self._key)
        try:
            return await ask(server)
        except LogUnavailable:
            self._cluster.doubt()
            raise


def _address(node: ClusterNode) -> Address:
    return str(node.host), int(node.port)


async def _close(servers: Iterable[RedisServer]) -> None:
    for server in servers:
        await server.close()
