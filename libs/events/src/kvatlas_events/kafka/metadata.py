"""Asks a cluster for one topic, with the ids that the client library does not ask for.

A topic that is deleted and created again has the same name and another id. A server that lost its
disk is another cluster. So only both ids together identify a log. They come with version 12 of
Kafka's metadata request (Kafka 3.1 and later); the library stops at version 5.
"""

# The client library comes without types.
# pyright: reportMissingTypeStubs=false

import uuid
from dataclasses import dataclass
from io import BytesIO
from typing import Any

from aiokafka import client as library
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.metadata import MetadataRequest
from aiokafka.protocol.types import (
    AbstractType,
    Boolean,
    CompactArray,
    CompactString,
    Int16,
    Int32,
    Schema,
    TaggedFields,
)

_TEXT = CompactString("utf-8")
_ID_BYTES = 16


class _Id(AbstractType[bytes]):
    """A topic's id, 16 bytes; all zero: none."""

    @classmethod
    def encode(cls, value: bytes) -> bytes:
        return value

    @classmethod
    def decode(cls, data: BytesIO) -> bytes:
        return data.read(_ID_BYTES)


class _MetadataResponse(Response):
    API_KEY = 3  # pyright: ignore - as in all of the library's responses
    API_VERSION = 12  # pyright: ignore - the same
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "brokers",
            CompactArray(
                ("node_id", Int32),
                ("host", _TEXT),
                ("port", Int32),
                ("rack", _TEXT),
                ("tags", TaggedFields),
            ),
        ),
        ("cluster_id", _TEXT),
        ("controller_id", Int32),
        (
            "topics",
            CompactArray(
                ("error_code", Int16),
                ("name", _TEXT),
                ("topic_id", _Id),
                ("is_internal", Boolean),
                (
                    "partitions",
                    CompactArray(
                        ("error_code", Int16),
                        ("partition", Int32),
                        ("leader", Int32),
                        ("leader_epoch", Int32),
                        ("replicas", CompactArray(Int32)),
                        ("in_sync", CompactArray(Int32)),
                        ("offline", CompactArray(Int32)),
                        ("tags", TaggedFields),
                    ),
                ),
                ("authorized_operations", Int32),
                ("tags", TaggedFields),
            ),
        ),
        ("tags", TaggedFields),
    )


class _MetadataRequest12(RequestStruct):
    API_KEY = 3
    API_VERSION = 12
    FLEXIBLE_VERSION = True
    RESPONSE_TYPE = _MetadataResponse
    SCHEMA = Schema(
        (
            "topics",
            CompactArray(("topic_id", _Id), ("name", _TEXT), ("tags", TaggedFields)),
        ),
        ("allow_auto_topic_creation", Boolean),
        ("include_authorized_operations", Boolean),
        ("tags", TaggedFields),
    )


class TopicRequest(Request[_MetadataRequest12]):
    """Asks for one topic, and tells the server not to create it."""

    API_KEY = 3

    def __init__(self, topic: str) -> None:
        self._topic = topic

    def build(self, request_struct_class: type[_MetadataRequest12]) -> _MetadataRequest12:
        """Called by the library, with the version that both sides know."""
        topics = [(bytes(_ID_BYTES), self._topic, dict[int, bytes]())]
        return request_struct_class(topics, False, False, {})


class _NoAutoCreation(MetadataRequest):
    """The library's own request, but without the automatic creation of topics.

    Otherwise a broker creates a topic again as soon as it is deleted under a producer or consumer,
    with one partition and without the log's clock. Only `KafkaCluster` creates topics.
    """

    def __init__(self, topics: list[str] | None = None) -> None:
        super().__init__(topics, allow_auto_topic_creation=False)


library.MetadataRequest = _NoAutoCreation


@dataclass(frozen=True, slots=True)
class Topic:
    """One topic of one cluster."""

    error_code: int
    """Kafka's error code; 0: none."""
    identity: str
    """Ids of cluster and topic."""
    partitions: tuple[int, ...]
    leaderless: bool
    """A partition has no leader, so it takes no writes."""
    controller_id: int


def topic_of(response: Any) -> Topic:  # noqa: ANN401 - the library makes its fields at run time
    """Return the topic from the response to a `TopicRequest`."""
    fields: dict[str, Any] = response.to_object()
    (topic,) = fields["topics"]
    partitions: list[dict[str, Any]] = topic["partitions"]
    return Topic(
        error_code=topic["error_code"],
        identity=f"{fields['cluster_id']}/{uuid.UUID(bytes=topic['topic_id']).hex}",
        partitions=tuple(sorted(each["partition"] for each in partitions)),
        leaderless=any(each["leader"] < 0 for each in partitions),
        controller_id=fields["controller_id"],
    )
