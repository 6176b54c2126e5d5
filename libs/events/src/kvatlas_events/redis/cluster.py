"""A Redis Cluster: each shard of the log lies in one slot.

The client library's cluster client only finds out which node has which slot. Commands then go to
the nodes as to single servers, because the log needs what a cluster client does not do: several
commands of one slot at once, reads that wait for seconds on their own connections, and no retries
of the library's own.

After a node does not answer or no longer has a slot, the next call asks for the slots again. It asks
at most twice a second, because a thousand deliveries may retry at once.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

from redis.asyncio.cluster import ClusterNode
from redis.asyncio.cluster import RedisCluster as LibraryCluster
from redis.exceptions import AskError, RedisClusterException, RedisError

from kvatlas_events.log import LogUnavailable
from kvatlas_events.redis.errors import SlotMoved, unavailable
from kvatlas_events.redis.keys import identity_key
from kvatlas_events.redis.server import ANSWER_S, RedisServer
from kvatlas_events.redis.shard_group import Command, Reply, ShardGroup, group_of_shard
from kvatlas_events.redis.url import Address, RedisUrl

_REFRESH_S = 0.5
_NODE_S = 2.0
"""Time for one node to list the slots, in seconds; then the next node is asked."""


class RedisCluster:
    """Nodes, connected when first used. Several tasks may call them.

    Raises:
        ValueError: the URL cannot be used.
    """

    def __init__(self, url: RedisUrl, *, answer_s: float = ANSWER_S) -> None:
        self.name = url.name
        self.shards = url.shards
        self._url = url
        self._answer_s = answer_s
        # One server is made at once: it checks the URL.
        self._servers = {each: self._server(each) for each in url.addresses[:1]}
        self._ask_first = list(url.addresses)
        self._keys: list[str] = []
        self._owners: dict[str, Address] = {}
        self._stale = True
        self._refreshing: asyncio.Task[None] | None = None
        self._refreshed_s = 0.0
        self._connections_closed = 0

    @property
    def connections(self) -> int:
        """Number of connections made to any node."""
        servers = self._servers.values()
        return self._connections_closed + sum(server.connections for server in servers)

    def shard_groups(self, cell: str) -> list[ShardGroup]:
        """Return the groups of a cell's log: one per shard, each in its own slot.

        Raises:
            ValueError: the cell's name would put a shard's keys into different slots.
        """
        if set(cell) & set("{}"):
            raise ValueError(f"{self.name}: in a cluster a cell's name has no braces: {cell!r}")
        self._keys = [identity_key(cell, shard) for shard in range(self.shards)]
        return [
            group_of_shard(ClusterSlot(self, key), cell, self.shards, shard)
            for shard, key in enumerate(self._keys)
        ]

    async def owner(self, key: str) -> RedisServer:
        """Return the node that has the key's slot, as far as is known.

        Raises:
            LogUnavailable: no node lists the slots, or no node has this one.
        """
        now_s = asyncio.get_running_loop().time()
        if self._stale and (key not in self._owners or now_s - self._refreshed_s > _REFRESH_S):
            if self._refreshing is None:
                self._refreshing = asyncio.create_task(self._refresh())
                self._refreshing.add_done_callback(self._refresh_done)
            await asyncio.shield(self._refreshing)
        if key not in self._owners:
            self._stale = True
            raise LogUnavailable(f"{self.name}: no node has the slot of {key}")
        address = self._owners[key]
        if address not in self._servers:
            self._servers[address] = self._server(address)
        return self._servers[address]

    def invalidate(self) -> None:
        """Ask for the slots again before one of the next calls."""
        self._stale = True

    def set_owner(self, key: str, address: Address) -> None:
        """Record that the node at `address` has the key's slot, as another node says."""
        self._owners[key] = address

    def unavailable(self, error: Exception) -> LogUnavailable:
        """Return a node's error in words."""
        self.invalidate()
        return unavailable(self.name, error, answer_s=self._answer_s)

    async def close(self) -> None:
        """Close all connections."""
        if self._refreshing is not None:
            self._refreshing.cancel()
            await asyncio.wait([self._refreshing])
        await _close(self._servers.values())

    def _server(self, address: Address) -> RedisServer:
        return RedisServer(self._url, node=address, answer_s=self._answer_s)

    def _refresh_done(self, refreshing: asyncio.Task[None]) -> None:
        self._refreshing = None
        if not refreshing.cancelled():
            refreshing.exception()  # marks it as seen: its waiter has it, or was cancelled

    async def _refresh(self) -> None:
        """Ask the nodes in turn which of them has which slot."""
        first, *others = self._ask_first
        library: Any = LibraryCluster.from_url(
            self._url.at(first),
            startup_nodes=[ClusterNode(*each) for each in others],
            dynamic_startup_nodes=False,
            require_full_coverage=False,
            protocol=2,
            socket_connect_timeout=_NODE_S,
            socket_timeout=_NODE_S,
        )
        nodes: Any = library.nodes_manager
        try:
            async with asyncio.timeout(self._answer_s):
                await nodes.initialize()
            owners: dict[int, Sequence[ClusterNode]] = nodes.slots_cache
            slots = {key: library.keyslot(key) for key in self._keys}
            self._owners = {
                key: _address(owners[slot][0]) for key, slot in slots.items() if slot in owners
            }
            named = [_address(node) for node in nodes.nodes_cache.values()]
        except (RedisError, RedisClusterException, OSError) as error:
            raise self._unreachable(error) from error
        finally:
            await nodes.aclose()
            await nodes.aclose("startup_nodes")
        self._ask_first = list(dict.fromkeys([*named, *self._url.addresses]))
        self._refreshed_s = asyncio.get_running_loop().time()
        self._stale = False
        await self._close_unused()

    async def _close_unused(self) -> None:
        """Close the connections to nodes that have none of the log's slots."""
        unused = set(self._servers).difference(self._owners.values())
        servers = [self._servers.pop(address) for address in unused]
        self._connections_closed += sum(server.connections for server in servers)
        await _close(servers)

    def _unreachable(self, error: Exception) -> LogUnavailable:
        """Return the error of the node asked last; the library wraps it in its own."""
        cause = error.__cause__
        if isinstance(error, RedisClusterException) and isinstance(cause, Exception):
            error = cause
            refusal = error.__context__
            if isinstance(error, RedisClusterException) and isinstance(refusal, RedisError):
                error = refusal
        if "cluster support disabled" in str(error):
            return LogUnavailable(
                f"{self.name} is not a cluster; write redis:// for a single server"
            )
        return unavailable(self.name, error, answer_s=self._answer_s)


class ClusterSlot:
    """An `Endpoint` in a cluster: the node that has the slot of `key`."""

    def __init__(self, cluster: RedisCluster, key: str) -> None:
        self._cluster = cluster
        self._key = key

    @property
    def name(self) -> str:
        """See `Endpoint`."""
        return self._cluster.name

    @property
    def connections(self) -> int:
        """See `Endpoint`; of all nodes, because the slot may have moved to any of them."""
        return self._cluster.connections

    async def call(self, *command: str | bytes | int, wait_s: float = 0.0) -> Reply:
        """See `Endpoint`."""
        return await self._follow(lambda server: server.call(*command, wait_s=wait_s))

    async def call_together(self, commands: Sequence[Command], *, atomic: bool) -> list[Reply]:
        """See `Endpoint`; if the slot has moved, all commands are sent again to its new node."""

        async def ask(server: RedisServer) -> list[Reply]:
            replies = await server.call_together(commands, atomic=atomic)
            for reply in replies:
                if isinstance(reply, AskError):
                    raise server.unavailable(reply) from reply
            return replies

        return await self._follow(ask)

    def unavailable(self, error: Exception) -> LogUnavailable:
        """See `Endpoint`."""
        return self._cluster.unavailable(error)

    async def _follow(self, ask: Callable[[RedisServer], Awaitable[Reply]]) -> Reply:
        try:
            return await self._once(ask)
        except SlotMoved as error:
            if error.address is None:
                raise
            self._cluster.set_owner(self._key, error.address)
        return await self._once(ask)

    async def _once(self, ask: Callable[[RedisServer], Awaitable[Reply]]) -> Reply:
        server = await self._cluster.owner(self._key)
        try:
            return await ask(server)
        except LogUnavailable:
            self._cluster.invalidate()
            raise


def _address(node: ClusterNode) -> Address:
    return str(node.host), int(node.port)


async def _close(servers: Iterable[RedisServer]) -> None:
    for server in servers:
        await server.close()
