"""Kafka brokers of a test's own."""

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kvatlas_testing.kafka import EmbeddedKafka


def skip_without_kafka() -> None:
    """Skip the test where no broker can run."""
    obstacle = EmbeddedKafka.obstacle()
    if obstacle is not None:
        pytest.skip(obstacle)


@contextmanager
def kafka_broker(
    *,
    certificate: Path | None = None,
    clients_authority: Path | None = None,
    users: dict[str, str] | None = None,
    advertised_port: int | None = None,
    creates_topics: bool = False,
) -> Generator[EmbeddedKafka]:
    """Start a broker, and delete it and its data at the end; see `EmbeddedKafka`."""
    skip_without_kafka()
    server = EmbeddedKafka(
        certificate=certificate,
        clients_authority=clients_authority,
        users=users,
        advertised_port=advertised_port,
        creates_topics=creates_topics,
    )
    try:
        server.start()
        yield server
    finally:
        server.close()
