"""One Kafka cluster, as the log's writer and reader talk to it.

Everything that can go wrong with it becomes `LogUnavailable` here, with its addresses. The client
library retries much in silence and some of it for ever, so every call has a bound of its own.
"""

# The client library comes without types.
# pyright: reportMissingTypeStubs=false

import asyncio
import contextlib
import logging
import ssl
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from typing import Any

from aiokafka import AIOKafkaClient, AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.conn import (
    create_conn,  # pyright: ignore[reportUnknownVariableType] - the library has no types
)
from aiokafka.errors import (
    AuthenticationFailedError,
    ClusterAuthorizationFailedError,
    IllegalSaslStateError,
    KafkaConnectionError,
    KafkaError,
    KafkaTimeoutError,
    MessageSizeTooLargeError,
    NodeNotReadyError,
    NoError,
    RequestTimedOutError,
    SaslAuthenticationFailed,
    TopicAlreadyExistsError,
    TopicAuthorizationFailedError,
    UnknownTopicOrPartitionError,
    UnsupportedSaslMechanismError,
    for_code,
)
from aiokafka.protocol.admin import CreateTopicsRequest

from kvatlas_events.kafka_access import KafkaAccess
from kvatlas_events.kafka_metadata import Topic, TopicRequest, topic_of
from kvatlas_events.kafka_topics import LOG_CONFIG, TopicPlan
from kvatlas_events.log import LogUnavailable, RecordsRejected

Client = Any
"""An object of the client library, which has no types."""

_ANSWER_S = 10.0
_BATCH_BYTES = 1_000_000
"""The library has one batch of a partition in flight, so its size decides the throughput."""
_FETCH_BYTES = 16 << 20
_FETCH_PARTITION_BYTES = 2 << 20
_RETRY_S = 0.05
_HANGS_UP = "hangs up; if its listener uses TLS, write kafka+tls://, and if it asks who we are, USER:PASSWORD@"
_HANGS_UP_ON_TLS = (
    "hangs up; if it wants a certificate of ours, set ssl_certfile to one that it trusts, and if it "
    "asks who we are, write USER:PASSWORD@"
)
_OUR_CERTIFICATE = ("ALERT_CERTIFICATE", "ALERT_BAD_CERTIFICATE", "ALERT_UNKNOWN_CA")
"""In what OpenSSL calls the alerts of a server that misses one of ours, or trusts it not."""
_NOT_THIS_NAME = (62, 64)  # OpenSSL's codes: another host's name, another IP address


class KafkaServer:
    """A lazily connected cluster; several tasks may call it."""

    def __init__(self, access: KafkaAccess | Sequence[str], *, answer_s: float = _ANSWER_S) -> None:
        if not isinstance(access, KafkaAccess):
            access = KafkaAccess(tuple(access))
        self.name = access.name
        self.answer_s = answer_s
        self._access = access
        self._options: dict[str, Any] = {
            **access.options,
            "client_id": "kvatlas",
            "request_timeout_ms": max(1, int(answer_s * 1_000)),
        }
        self._client: Client | None = None
        self._undoing = set[asyncio.Task[None]]()
        # It logs every attempt at a server that is away; what matters of that is raised.
        logging.getLogger("aiokafka").setLevel(logging.CRITICAL)

    @contextlib.asynccontextmanager
    async def bounded(self, wait_s: float = 0.0) -> AsyncGenerator[None, None]:
        """Give what is called inside `wait_s` and the time of an answer, and its errors words.

        Raises:
            LogUnavailable: as of `LogWriter` and `LogReader`.
            RecordsRejected: a record is larger than the topic takes.
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
            raise self._unusable(error) from error

    async def topic(self, plan: TopicPlan) -> Topic:
        """Return the topic as it is now, after making it if it is not there."""
        if self._client is None:
            client: Client = AIOKafkaClient(**self._options)
            await self._open(lambda: self._bootstrap(client), client.close)
            if self._client is None:
                self._client = client
            else:
                await client.close()  # another task was faster
        client = self._client
        try:
            return await self._find_or_create(client, plan)
        except (KafkaError, OSError, asyncio.CancelledError):
            # It may know an address of yesterday, or wait for what a dead network has swallowed:
            # the next one begins at those of the URL.
            self._let_go(client)
            raise

    async def producer(self) -> Client:
        """Return a started producer that stores each batch once and in order."""
        producer: Client = AIOKafkaProducer(
            **self._options,
            enable_idempotence=True,
            acks="all",
            compression_type="zstd",
            max_batch_size=_BATCH_BYTES,
            max_request_size=_FETCH_BYTES,
        )
        await self._open(producer.start, producer.stop)
        return producer

    async def consumer(self) -> Client:
        """Return a started consumer of no group, to whom nothing is assigned."""
        consumer: Client = AIOKafkaConsumer(
            **self._options,
            group_id=None,
            enable_auto_commit=False,
            auto_offset_reset="none",
            fetch_max_bytes=_FETCH_BYTES,
            max_partition_fetch_bytes=_FETCH_PARTITION_BYTES,
        )
        await self._open(consumer.start, consumer.stop)
        return consumer

    async def abandon(self, producer: Client) -> None:
        """Stop a producer, and with it what it may still want to send."""

        async def stop() -> None:
            client = producer.client
            await _hang_up(client)  # ends the wait for answers
            # Nobody asks for metadata any more: who waits for them would wait for ever.
            updated = client._md_update_fut or asyncio.get_running_loop().create_future()  # noqa: SLF001
            client._md_update_fut = updated  # noqa: SLF001
            if not updated.done():
                updated.set_result(False)
            # The library's own stop waits until all is stored, which may be for ever.
            producer._closed = True  # noqa: SLF001
            await producer._sender.close()  # noqa: SLF001

        await self._dispose(stop)

    async def release(self, consumer: Client) -> None:
        """Stop a consumer."""

        async def stop() -> None:
            client = consumer._client  # noqa: SLF001
            try:
                await _hang_up(client)
                await consumer.stop()
            finally:
                # The library's own stop leaves this out if a fetch has failed.
                await _hang_up(client)

        await self._dispose(stop)

    async def _dispose(self, stop: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Stop an object of the library; it goes on behind a caller who is cancelled."""
        await asyncio.wait([self._undo(stop())], timeout=self.answer_s)

    def _undo(self, undoing: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """End something behind the caller's back; `close` waits for it."""
        task = asyncio.create_task(undoing)
        self._undoing.add(task)
        task.add_done_callback(self._undone)
        return task

    def _undone(self, task: asyncio.Task[None]) -> None:
        self._undoing.discard(task)
        if not task.cancelled():
            task.exception()  # nobody asks: the library's own, about what is given up

    async def close(self) -> None:
        """Let go of the connection that asks for topics."""
        self._let_go(self._client)
        if self._undoing:
            await asyncio.wait(self._undoing, timeout=self.answer_s)

    def _let_go(self, client: Client | None) -> None:
        """Close what is not closed yet."""
        if client is not None and client is self._client:
            self._client = None
            self._undo(_hang_up(client))

    async def _open(self, start: Callable[[], Any], stop: Callable[[], Any]) -> None:
        """Start an object of the library, or stop it if that fails.

        A cancellation does not reach its start, which would forget an open connection: what a
        cancelled caller began is ended, and stopped, behind its back.
        """
        starting: asyncio.Task[None] = asyncio.create_task(self._start(start))
        try:
            await asyncio.shield(starting)
        except BaseException:
            self._undo(_stop_started(starting, stop))
            raise

    async def _start(self, start: Callable[[], Any]) -> None:
        try:
            async with asyncio.timeout(self.answer_s):
                await start()
        except ssl.SSLError:
            raise  # which can be a ValueError too
        except ValueError as error:  # from within the library's SCRAM
            raise AuthenticationFailedError("it does not know the password itself") from error

    async def _bootstrap(self, client: Client) -> None:
        """Find the cluster, or say of the first address that answers why it cannot be used.

        The library logs the reason, and raises another one.
        """
        try:
            await client.bootstrap()
        except KafkaConnectionError:
            for host, port, _ in client.hosts:
                await self._try(host, port)
            raise

    async def _try(self, host: str, port: int) -> None:
        """Connect as the library does, and let its error out if something is there."""
        options: dict[str, Any] = {**self._options, "host": host, "port": port}
        del options["bootstrap_servers"]
        hangs_up = f"{host}:{port} {_HANGS_UP if self._access.tls is None else _HANGS_UP_ON_TLS}"
        try:
            connection: Client = await create_conn(**options)
        except ssl.SSLError:
            raise
        except (KafkaConnectionError, RequestTimedOutError) as error:
            for cause in (error.__cause__, error.__context__):
                if isinstance(cause, ssl.SSLError):
                    raise cause from None
            raise KafkaConnectionError(hangs_up) from error
        except OSError:
            return  # nobody is there
        connection.close()
        raise KafkaConnectionError(hangs_up)

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
            await asyncio.sleep(_RETRY_S)  # until all of the cluster knows it

    async def _create(self, client: Client, controller_id: int, plan: TopicPlan) -> None:
        # In the order of the protocol; -1: as many replicas as the cluster makes by itself.
        wanted: Any = (plan.name, plan.partitions, -1, [], list(plan.config.items()))
        request = CreateTopicsRequest([wanted], int(self.answer_s * 1_000), False)
        response = await client.send(controller_id, request)
        for _, code, *why in response.topic_errors:
            error = for_code(code)
            if error not in (NoError, TopicAlreadyExistsError):
                raise error(
                    f"topic {plan.name} cannot be made: {why[0] if why else error.__name__}"
                )

    def _unusable(self, error: Exception) -> LogUnavailable:
        match error:
            case TopicAuthorizationFailedError() | ClusterAuthorizationFailedError():
                why = f"does not let us in: {error}"
            case SaslAuthenticationFailed() | AuthenticationFailedError():
                user, mechanism = self._access.user, self._access.mechanism
                why = (
                    f"does not let user {user} in by {mechanism}: {_text(error)}; "
                    "set the user and the password of the URL to what the cluster knows"
                )
            case UnsupportedSaslMechanismError():
                why = f"does not know {self._access.mechanism}; set the URL's sasl_mechanism"
            case IllegalSaslStateError():
                why = "asks nobody for a user; write the URL without USER:PASSWORD@"
            case ssl.SSLError():
                why = _about_tls(error)
            case TimeoutError() | KafkaTimeoutError() | RequestTimedOutError():
                why = f"does not answer within {self.answer_s:g} s"
            case KafkaConnectionError() | NodeNotReadyError() | OSError():
                why = f"cannot be reached: {error}"
            case NotImplementedError():
                why = "is older than Kafka 3.1"
            case _:
                why = f"refuses: {error}"
        return LogUnavailable(f"{self.name} {why}")


async def _hang_up(client: Client) -> None:
    """Close connections without a goodbye: a server that stands still would be waited for."""
    for each in client._conns.values():  # noqa: SLF001
        if each.connected():
            each._writer.transport.abort()  # noqa: SLF001
    await client.close()


async def _stop_started(starting: asyncio.Task[None], stop: Callable[[], Any]) -> None:
    await asyncio.wait([starting])
    if not starting.cancelled():
        starting.exception()  # whoever waited for it has it, or is gone
    await stop()


def _text(error: KafkaError) -> str:
    """Return what the cluster said, and not what the library makes of it."""
    return str(error.args[0]) if error.args else type(error).__name__


def _about_tls(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return _untrusted(error)
    reason = error.reason or "no reason is given"
    if any(each in reason for each in _OUR_CERTIFICATE):
        return (
            f"does not let us in without a certificate that it trusts: {reason}; "
            "set ssl_certfile to one"
        )
    return f"does not agree on TLS: {reason}; if its listener uses none, write kafka://"


def _untrusted(error: ssl.SSLCertVerificationError) -> str:
    said = error.verify_message.rstrip(".")
    if error.verify_code in _NOT_THIS_NAME:
        return f"shows a certificate of another name: {said}; write the name that it has"
    return f"shows a certificate that is not trusted: {said}; set ssl_ca_certs to its authority's"


def _some_node(client: Client) -> int:
    node = client.get_random_node()
    if node is None:
        raise NodeNotReadyError("no broker is known")
    return node
