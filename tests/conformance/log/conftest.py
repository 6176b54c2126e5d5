"""The Kafka server of these tests: the first that this machine can have.

A container where a Docker engine answers; else our own child process, where java and mvn are; else
the server that KVATLAS_TEST_KAFKA=HOST:PORT names; else the tests that need one are skipped.
"""

import gc
import os
import warnings
from collections.abc import Callable, Generator
from contextlib import ExitStack
from typing import Any

import docker
import pytest
from docker.errors import DockerException

from kvatlas_events.embedded_kafka import EmbeddedKafka

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


@pytest.fixture(scope="module")
def kafka() -> Generator[Kafka, None, None]:
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
