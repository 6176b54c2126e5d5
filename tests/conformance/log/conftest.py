"""The Kafka server of these tests: the first that this machine can have.

A container where a Docker engine answers; else our own child process, where java and mvn are; else
the server that KVATLAS_TEST_KAFKA=HOST:PORT names; else the tests that need one are skipped.
"""

import asyncio
import gc
import os
import uuid
import warnings
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import ExitStack
from typing import Any

import docker
import pytest
from docker.errors import DockerException

from kvatlas_events import LogPosition, LogReader, LogWriter
from kvatlas_events.kafka.cluster import KafkaCluster
from kvatlas_events.kafka.reader import KafkaReader
from kvatlas_events.kafka.topics import log_topic
from kvatlas_events.kafka.url import KafkaUrl
from kvatlas_events.kafka.writer import KafkaWriter
from kvatlas_testing.kafka import EmbeddedKafka
from kvatlas_testing.valkey_cluster import EmbeddedValkeyCluster

Kafka = Callable[[], tuple[str, EmbeddedKafka | None]]
"""Starts the server at the first call. HOST:PORT, and the server if it is ours to stop."""


def docker_answers() -> bool:
    """Whether an engine does; that there is a command proves nothing."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # the library drops its socket unclosed
        try:
            client: Any = docker.from_env(timeout=2)
            client.ping()
            client.close()
        except DockerException:
            return False
        finally:
            gc.collect()  # while its warnings are ignored
    return True


def container(stack: ExitStack) -> str:
    from testcontainers.community.kafka import KafkaContainer  # noqa: PLC0415 - slow, and rarely used

    running: Any = stack.enter_context(KafkaContainer().with_kraft())
    return running.get_bootstrap_server()


def found_kafka() -> Generator[Kafka, None, None]:
    with ExitStack() as stack:
        found: list[tuple[str, EmbeddedKafka | None]] = []

        def find() -> tuple[str, EmbeddedKafka | None]:
            if docker_answers():
                return container(stack), None
            obstacle = EmbeddedKafka.obstacle()
            if obstacle is None:
                server = EmbeddedKafka()
                stack.callback(server.close)
                server.start()
                return server.address, server
            if address := os.environ.get("KVATLAS_TEST_KAFKA"):
                return address, None
            pytest.skip(f"no Docker engine answers, {obstacle}, KVATLAS_TEST_KAFKA is not set")

        def server() -> tuple[str, EmbeddedKafka | None]:
            if not found:
                found.append(find())
            return found[0]

        yield server


@pytest.fixture(scope="session")
def lasting_kafka() -> Generator[Kafka, None, None]:
    """The server of all tests that do not end it."""
    yield from found_kafka()


@pytest.fixture(scope="session")
def ending_kafka() -> Generator[Kafka, None, None]:
    """The server of the tests that end it: with the topics of all others its start takes long."""
    yield from found_kafka()


@pytest.fixture
def kafka(request: pytest.FixtureRequest, lasting_kafka: Kafka, ending_kafka: Kafka) -> Kafka:
    return ending_kafka if request.node.get_closest_marker("ends_log") else lasting_kafka


@pytest.fixture(scope="session")
def redis_cluster() -> Generator[EmbeddedValkeyCluster, None, None]:
    """Make one for all tests; the first that needs it starts it, and any may stop it."""
    cluster = EmbeddedValkeyCluster()
    yield cluster
    cluster.stop()


class KafkaTransport:
    """A cell of its own on a server that tests share; only a test marked `ends_log` stops it."""

    position = "0:5"

    def __init__(self, address: str, server: EmbeddedKafka | None) -> None:
        self.address = address
        self.server = server
        self.ours_to_stop = server is not None
        self.repeats_what_was_given_up = True
        self.cell = f"test-{uuid.uuid4().hex}"
        self.open: list[LogWriter | LogReader] = []

    async def start(self) -> None:
        if self.server is not None and self.server.pid is None:
            self.server.start()  # blocks; nothing of the test has to go on meanwhile

    async def stop(self) -> None:
        if self.server is not None:
            self.server.kill()

    def writer(self) -> LogWriter:
        writer = KafkaWriter(self._view(), log_topic(self.cell))
        self.open.append(writer)
        return writer

    def reader(self, position: LogPosition | None = None) -> LogReader:
        reader = KafkaReader(self._view(), log_topic(self.cell), position=position)
        self.open.append(reader)
        return reader

    def _view(self) -> KafkaCluster:
        # A stopped server does not answer, so the wait for it is short.
        return KafkaCluster(KafkaUrl((self.address,)), answer_s=10 if self.server is None else 4)

    async def close(self) -> None:
        await self.start()  # for the tests that follow
        for each in self.open:
            await each.close()


@pytest.fixture
def kafka_transport(kafka: Kafka) -> Callable[[], KafkaTransport]:
    return lambda: KafkaTransport(*kafka())


@pytest.fixture
async def connections_gone() -> AsyncGenerator[None, None]:
    """Let every connection end before the loop does: by TLS both sides say goodbye.

    The client library closes those that it begins with without waiting for that.
    """
    yield
    loop: Any = asyncio.get_running_loop()
    async with asyncio.timeout(20):
        while any(each._sock is not None for each in list(loop._transports.values())):  # noqa: ASYNC110 - of the loop itself
            await asyncio.sleep(0.005)  # each falls when its server's goodbye has come
