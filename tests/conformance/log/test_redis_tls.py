"""TLS and accounts by URL, on real servers: what opens, and what is said when it does not."""

import asyncio
import ssl
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import redis.asyncio as redis

from kvatlas_events import LogUnavailable
from kvatlas_events.redis.open import open_redis
from kvatlas_events.redis.reader import RedisReader
from kvatlas_events.redis.writer import RedisWriter
from kvatlas_testing.valkey import EmbeddedValkey
from kvatlas_testing.valkey_cluster import EmbeddedValkeyCluster
from tests.conformance.log.certificates import Authority
from tests.conformance.log.proxy import TcpProxy
from tests.conformance.log.redis_transports import (
    PASSWORD,
    PASSWORD_IN_URL,
    RIGHTS,
    USER,
    RedisTransport,
    in_cluster,
    with_tls,
)

LOGIN = f"{USER}:{PASSWORD_IN_URL}"


@pytest.fixture
async def log(tmp_path: Path) -> AsyncGenerator[RedisTransport, None]:
    async with with_tls(tmp_path) as transport:
        await transport.start()
        yield transport


async def why_not(url: str) -> str:
    """Return what both sides say of a URL that opens nothing, after seeing that it is one line."""
    writer, reader = RedisWriter(open_redis(url), cell="c"), RedisReader(open_redis(url), cell="c")
    said: set[str] = set()
    for call in (lambda: writer.append([b"x"]), lambda: reader.read(0)):
        with pytest.raises(LogUnavailable) as unavailable:
            await call()
        said.add(str(unavailable.value))
    for each in (writer, reader):
        await each.close()
    (why,) = said
    assert "\n" not in why
    assert "s3cret" not in why
    return why


async def test_a_certificate_of_a_ca_that_was_not_named_is_not_trusted(
    log: RedisTransport, tmp_path: Path
) -> None:
    wrong = Authority().write(tmp_path / "wrong.pem")
    right = str(tmp_path / "ca.pem")
    for url in (log.url.replace(right, str(wrong)), log.url.partition("?")[0]):
        why = await why_not(url)
        assert "a certificate that is not trusted here; name its CA's file by ?ssl_ca_certs=" in why


async def test_a_certificate_for_another_host_is_said(log: RedisTransport) -> None:
    why = await why_not(log.url.replace("127.0.0.1", "localhost"))
    assert "a certificate for another host; write a HOST that it names" in why


async def test_a_wrong_password_or_user_says_where_to_look(log: RedisTransport) -> None:
    for login in (f"{USER}:s3cret", f"nobody:{PASSWORD_IN_URL}"):
        why = await why_not(log.url.replace(LOGIN, login))
        assert "does not let us in" in why
        assert "check USER and PASSWORD in the log's URL" in why


async def test_a_port_that_answers_without_tls_is_said() -> None:
    async def refuse(stream: asyncio.StreamReader, answer: asyncio.StreamWriter) -> None:
        await stream.read(1)
        answer.write(b"-ERR what is this?\r\n")
        await answer.drain()
        answer.close()

    async with await asyncio.start_server(refuse, "127.0.0.1", 0) as stranger:
        port = stranger.sockets[0].getsockname()[1]
        assert "is its port one for TLS?" in await why_not(f"rediss://127.0.0.1:{port}")


async def test_a_server_that_wants_a_certificate_of_its_clients_is_shown_it(
    tmp_path: Path,
) -> None:
    authority = Authority()
    ca = authority.write(tmp_path / "ca.pem")
    mine = authority.ca.issue_cert("kvatlas")
    mine.private_key_and_cert_chain_pem.write_to_path(tmp_path / "mine.pem")
    context = authority.context("127.0.0.1")
    authority.demand(context)
    async with EmbeddedValkey() as valkey, TcpProxy(valkey.port, tls=context) as proxy:
        url = f"rediss://127.0.0.1:{proxy.port}?ssl_ca_certs={ca}"
        assert "cannot be reached" in await why_not(url)  # how TLS 1.3 refuses: it hangs up
        shown = f"{url}&ssl_certfile={tmp_path / 'mine.pem'}&ssl_keyfile={tmp_path / 'mine.pem'}"
        writer = RedisWriter(open_redis(shown), cell="c")
        await writer.append([b"x"])
        await writer.close()


@asynccontextmanager
async def announced(
    cluster: EmbeddedValkeyCluster, context: ssl.SSLContext
) -> AsyncGenerator[list[int], None]:
    """Put TLS in front of each node, let the nodes name these ports, and take it back at the end."""
    clients: list[Any] = [redis.Redis(port=node.port) for node in cluster.nodes]
    async with AsyncExitStack() as stack:
        proxies = [TcpProxy(node.port, tls=context) for node in cluster.nodes]
        ports = [(await stack.enter_async_context(proxy)).port for proxy in proxies]
        for client, port in zip(clients, ports, strict=True):
            stack.push_async_callback(client.aclose)
            await client.config_set("cluster-announce-port", port)
        for client in clients:
            await until_announced(client, set(ports))
        yield ports
        for client in clients:
            await client.config_set("cluster-announce-port", 0)
        for client in clients:
            await until_announced(client, {node.port for node in cluster.nodes})


async def test_a_cluster_is_reached_by_tls_at_the_addresses_that_its_nodes_announce(
    redis_cluster: EmbeddedValkeyCluster, tmp_path: Path
) -> None:
    authority = Authority()
    ca = authority.write(tmp_path / "ca.pem")
    context = authority.context("127.0.0.1")
    async with in_cluster(redis_cluster) as plain, announced(redis_cluster, context) as ports:
        await let_in(redis_cluster)
        address = f"127.0.0.1:{ports[0]}"
        url = f"rediss+cluster://{LOGIN}@{address}?ssl_ca_certs={ca}"
        writer = RedisWriter(open_redis(url), cell=plain.cell)
        reader = RedisReader(open_redis(url), cell=plain.cell)
        parts = await writer.append_probe(b"mark")
        await writer.append([b"x"])
        slice_ = await reader.read(0)
        assert (slice_.records, len(slice_.probes)) == ([b"x"], len(parts))
        for each in (writer, reader):
            await each.close()
        wrong = f"rediss+cluster://{USER}:s3cret@{address}?ssl_ca_certs={ca}"
        assert "check USER and PASSWORD" in await why_not(wrong)
        untrusted = f"rediss+cluster://{LOGIN}@{address}"
        assert "name its CA's file by ?ssl_ca_certs=" in await why_not(untrusted)


async def let_in(cluster: EmbeddedValkeyCluster) -> None:
    """Give the account of the tests its rights on every node."""
    client: Any
    for node in cluster.nodes:
        async with redis.Redis(port=node.port) as client:
            await client.execute_command(
                *("ACL", "SETUSER", USER, "on", f">{PASSWORD}", "~kvatlas:*"),
                *(*RIGHTS.split(), "+cluster|slots"),
            )


async def until_announced(client: Any, ports: set[int]) -> None:  # noqa: ANN401 - see above
    """Wait until a node has heard where all of them are to be found."""
    async with asyncio.timeout(20):
        # Nothing tells when the nodes have gossiped.
        while {each[2][1] for each in await client.execute_command("CLUSTER", "SLOTS")} != ports:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
