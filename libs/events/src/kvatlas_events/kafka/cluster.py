"""One Kafka cluster, for the log's writer and reader.

Every error becomes `LogUnavailable` with the cluster's addresses. The client library retries much
silently and some things for ever, so every call here has a time limit of its own.
"""

# The client library comes without types.
# pyright: reportMissingTypeStubs=false

import asyncio
import contextlib
import logging
import ssl
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any

from aiokafka import AIOKafkaClient, AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.conn import (
    create_conn,  # pyright: ignore[reportUnknownVariableType] - the library has no types
)
from aiokafka.errors import (
    AuthenticationFailedError,
    KafkaConnectionError,
    KafkaError,
    MessageSizeTooLargeError,
    NodeNotReadyError,
    NoError,
    RequestTimedOutError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
    for_code,
)
from aiokafka.protocol.admin import CreateTopicsRequest

from kvatlas_events.kafka.errors import hangs_up, unavailable
from kvatlas_events.kafka.metadata import Topic, TopicRequest, topic_of
from kvatlas_events.kafka.topics import LOG_CONFIG, TopicPlan
from kvatlas_events.kafka.url import KafkaUrl
from kvatlas_events.log import RecordsRejected

Client = Any
"""An object of the client library, which has no types."""

_ANSWER_S = 10.0
_BATCH_BYTES = 1_000_000
"""The library sends one batch of a partition at a time, so its size limits the throughput."""
_FETCH_BYTES = 16 << 20
_FETCH_PARTITION_BYTES = 2 << 20
_RETRY_S = 0.05


class KafkaCluster:
    """A cluster, connected when first used. Several tasks may call it.

    Args:
        url: brokers and login.
        answer_s: time for the cluster to answer, in seconds.
    """

    def __init__(self, url: KafkaUrl, *, answer_s: float = _ANSWER_S) -> None:
        self.name = url.name
        self.answer_s = answer_s
        self._url = url
        self._options: dict[str, Any] = {
            **url.options,
            "client_id": "kvatlas",
            "request_timeout_ms": max(1, int(answer_s * 1_000)),
        }
        self._client: Client | None = None
        self._stopping = set[asyncio.Task[None]]()
        # The library logs every attempt at an unreachable server; the relevant errors are raised.
        logging.getLogger("aiokafka").setLevel(logging.CRITICAL)

    @contextlib.asynccontextmanager
    async def bounded(self, wait_s: float = 0.0) -> AsyncGenerator[None, None]:
        """Limit the time of the block to `wait_s` plus one answer, and translate its errors.

        Raises:
            LogUnavailable: as in `LogWriter` and `LogReader`.
            RecordsRejected: a record is larger than the topic allows.
        """
        try:
            async with asyncio.timeout(wait_s + self.answer_s):
                yield
        except MessageSizeTooLargeError as error:
            raise RecordsRejected(
                f"{self.name}: a record is larger than the topic's max.message.bytes; "
                f"set it to {LOG_CONFIG['max.message.bytes']}"
            ) from error
        except (KafkaError, OSError, NotImplementedError) as error:
            raise unavailable(self._url, error, answer_s=self.answer_s) from error

    async def topic(self, plan: TopicPlan) -> Topic:
        """Return the topic as it is now; create it first if it does not exist."""
        if self._client is None:
            client: Client = AIOKafkaClient(**self._options)
            await self._start(lambda: self._bootstrap(client), client.close)
            if self._client is None:
                self._client = client
            else:
                await client.close()  # another task was faster
        client = self._client
        try:
            return await self._find_or_create(client, plan)
        except (KafkaError, OSError, asyncio.CancelledError):
            # This client may know only outdated addresses, or wait for a lost answer. The next one
            # starts at the URL's addresses.
            self._drop_client(client)
            raise

    async def start_producer(self) -> Client:
        """Return a started producer that stores each batch once and in order."""
        producer: Client = AIOKafkaProducer(
            **self._options,
            enable_idempotence=True,
            acks="all",
            compression_type="zstd",
            max_batch_size=_BATCH_BYTES,
            max_request_size=_FETCH_BYTES,
        )
        await self._start(producer.start, producer.stop)
        return producer

    async def start_consumer(self) -> Client:
        """Return a started consumer without a group and without partitions."""
        consumer: Client = AIOKafkaConsumer(
            **self._options,
            group_id=None,
            enable_auto_commit=False,
            auto_offset_reset="none",
            fetch_max_bytes=_FETCH_BYTES,
            max_partition_fetch_bytes=_FETCH_PARTITION_BYTES,
        )
        await self._start(consumer.start, consumer.stop)
        return consumer

    async def stop_producer(self, producer: Client) -> None:
        """Stop a producer, and drop the batches that it has not sent."""

        async def stop() -> None:
            client = producer.client
            await _close_at_once(client)  # ends the wait for answers
            # Nobody asks for metadata any more, so a wait for them would never end.
            updated = client._md_update_fut or asyncio.get_running_loop().create_future()  # noqa: SLF001
            client._md_update_fut = updated  # noqa: SLF001
            if not updated.done():
                updated.set_result(False)
            # The library's own stop waits until all is stored, which may be for ever.
            producer._closed = True  # noqa: SLF001
            await producer._sender.close()  # noqa: SLF001

        await self._stop(stop())

    async def stop_consumer(self, consumer: Client) -> None:
        """Stop a consumer, and close its client even if the library leaves it open."""

        async def stop() -> None:
            client = consumer._client  # noqa: SLF001
            try:
                await _close_at_once(client)
                await consumer.stop()
            finally:
                # The library's own stop leaves the client open if a fetch has failed.
                await _close_at_once(client)

        await self._stop(stop())

    async def close(self) -> None:
        """Close the connection that asks for topics, and wait for objects that are stopping."""
        self._drop_client(self._client)
        if self._stopping:
            await asyncio.wait(self._stopping, timeout=self.answer_s)

    async def _stop(self, stopping: Coroutine[Any, Any, None]) -> None:
        """Stop an object of the library; it goes on in the background if the caller is cancelled."""
        await asyncio.wait([self._stop_in_background(stopping)], timeout=self.answer_s)

    def _stop_in_background(self, stopping: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(stopping)
        self._stopping.add(task)
        task.add_done_callback(self._stopped)
        return task

    def _stopped(self, task: asyncio.Task[None]) -> None:
        self._stopping.discard(task)
        if not task.cancelled():
            task.exception()  # marks it as seen: errors of an object that is given up do not matter

    def _drop_client(self, client: Client | None) -> None:
        if client is not None and client is self._client:
            self._client = None
            self._stop_in_background(_close_at_once(client))

    async def _start(self, start: Callable[[], Any], stop: Callable[[], Any]) -> None:
        """Start an object of the library, or stop it if that fails.

        A cancellation does not reach the start, which would leave a connection open. The start ends
        in the background, and the object is stopped then.
        """
        starting: asyncio.Task[None] = asyncio.create_task(self._start_bounded(start))
        try:
            await asyncio.shield(starting)
        except BaseException:
            self._stop_in_background(_stop_started(starting, stop))
            raise

    async def _start_bounded(self, start: Callable[[], Any]) -> None:
        try:
            async with asyncio.timeout(self.answer_s):
                await start()
        except ssl.SSLError:
            raise  # it can be a ValueError too
        except ValueError as error:  # from inside the library's SCRAM
            raise AuthenticationFailedError("it does not know the password itself") from error

    async def _bootstrap(self, client: Client) -> None:
        """Find the cluster, or raise why the first address that answers cannot be used.

        The library logs that reason and raises another error.
        """
        try:
            await client.bootstrap()
        except KafkaConnectionError:
            for host, port, _ in client.hosts:
                await self._try_connection(host, port)
            raise

    async def _try_connection(self, host: str, port: int) -> None:
        """Connect as the library does, and raise its error if a server is there."""
        options: dict[str, Any] = {**self._options, "host": host, "port": port}
        del options["bootstrap_servers"]
        failure = hangs_up(f"{host}:{port}", self._url)
        try:
            connection: Client = await create_conn(**options)
        except ssl.SSLError:
            raise
        except (KafkaConnectionError, RequestTimedOutError) as error:
            for cause in (error.__cause__, error.__context__):
                if isinstance(cause, ssl.SSLError):
                    raise cause from None
            raise failure from error
        except OSError:
            return  # no server is there
        connection.close()
        raise failure

    async def _find_or_create(self, client: Client, plan: TopicPlan) -> Topic:
        while True:
            topic = topic_of(await client.send(_some_node(client), TopicRequest(plan.name)))
            error = for_code(topic.error_code)
            if error is UnknownTopicOrPartitionError:
                await self._create(client, topic.controller_id, plan)
            elif error is not NoError and not error.retriable:
                raise error(plan.name)
            elif error is NoError and topic.partitions and not topic.leaderless:
                return topic
            await asyncio.sleep(_RETRY_S)  # until all brokers know it

    async def _create(self, client: Client, controller_id: int, plan: TopicPlan) -> None:
        # In the order of the protocol; -1: the cluster's default number of replicas.
        wanted: Any = (plan.name, plan.partitions, -1, [], list(plan.config.items()))
        request = CreateTopicsRequest([wanted], int(self.answer_s * 1_000), False)
        response = await client.send(controller_id, request)
        for _, code, *reason in response.topic_errors:
            error = for_code(code)
            if error not in (NoError, TopicAlreadyExistsError):
                raise error(
                    f"topic {plan.name} cannot be made: {reason[0] if reason else error.__name__}"
                )


async def _close_at_once(client: Client) -> None:
    """Abort connections: an orderly close waits for a server that does not answer."""
    for each in client._conns.values():  # noqa: SLF001
        if each.connected():
            each._writer.transport.abort()  # noqa: SLF001
    await client.close()


async def _stop_started(starting: asyncio.Task[None], stop: Callable[[], Any]) -> None:
    await asyncio.wait([starting])
    if not starting.cancelled():
        starting.exception()  # marks it as seen: its waiter has it, or was cancelled
    await stop()


def _some_node(client: Client) -> int:
    node = client.get_random_node()
    if node is None:
        raise NodeNotReadyError("no broker is known")
    return node
