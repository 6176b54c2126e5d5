"""Opens the writers, the reader, the prober and the claims of a `--log` URL.

Nothing connects here. A malformed URL is a `ValueError` of one line that says what to write instead.
An unreachable server is not an error here.
"""

from kvatlas_events.claims import ClaimRegister
from kvatlas_events.grpc_writer import GrpcWriter
from kvatlas_events.kafka.claims import KafkaClaims
from kvatlas_events.kafka.cluster import KafkaCluster
from kvatlas_events.kafka.reader import KafkaReader
from kvatlas_events.kafka.topics import log_topic
from kvatlas_events.kafka.url import KafkaUrl, is_host_and_port
from kvatlas_events.kafka.writer import KafkaWriter
from kvatlas_events.log import LogPosition, LogProber, LogReader, LogWriter
from kvatlas_events.redis.claims import RedisClaims
from kvatlas_events.redis.open import open_redis
from kvatlas_events.redis.reader import RedisReader
from kvatlas_events.redis.writer import RECORDS_MAX, RedisWriter

LOG_SERVER_URLS = (
    "redis://H:P, redis+cluster://H:P[,H:P...] or kafka://H:P[,H:P...]; with TLS rediss://, "
    "rediss+cluster:// or kafka+tls://; with an account USER:PASSWORD@ before H:P; options as "
    "?NAME=VALUE&... at the end: shards (Redis), sasl_mechanism (Kafka), ssl_ca_certs, "
    "ssl_certfile, ssl_keyfile and ssl_check_hostname (TLS)"
)
"""URLs that `--log` takes besides `grpc:`, for `--help` texts and errors."""

_FORMS = f"grpc://H:P[,H:P...], {LOG_SERVER_URLS}"


def open_writers(url: str, *, cell: str, records_max: int = RECORDS_MAX) -> list[LogWriter]:
    """Open every destination that `url` names; nothing is connected yet.

    `grpc://a:1,b:2` gives two writers, so that each replica fails alone. A Redis log keeps about
    `records_max` of the newest records.

    Raises:
        ValueError: the URL cannot be used; the message says why and never holds a password.
    """
    if _scheme(url) == "grpc":
        return [GrpcWriter(address) for address in _addresses(url)]
    return [_open_server_writer(url, cell=cell, records_max=records_max)]


def open_reader(url: str, *, cell: str, position: LogPosition | None = None) -> LogReader | None:
    """Open the log that `url` names, from its beginning or `position`; nothing is connected yet.

    None for `grpc:`: the indexer's server takes the records.

    Raises:
        ValueError: the URL cannot be used; the message says why and never holds a password.
    """
    match _scheme(url):
        case "grpc":
            return None
        case "kafka" | "kafka+tls":
            return KafkaReader(KafkaCluster(KafkaUrl.of(url)), log_topic(cell), position=position)
        case _:
            return RedisReader(open_redis(url), cell=cell, position=position)


def open_prober(url: str, *, cell: str) -> LogProber | None:
    """Open a prober of the log that `url` names; nothing is connected yet.

    None for `grpc:`: there is no log between publishers and the indexer.

    Raises:
        ValueError: the URL cannot be used; the message says why and never holds a password.
    """
    return None if _scheme(url) == "grpc" else _open_server_writer(url, cell=cell)


def open_claims(url: str, *, cell: str) -> ClaimRegister | None:
    """Open the claims of the log that `url` names; nothing is connected yet.

    None for `grpc:`: the indexer itself rejects an older publisher.

    Raises:
        ValueError: the URL cannot be used; the message says why and never holds a password.
    """
    match _scheme(url):
        case "grpc":
            return None
        case "kafka" | "kafka+tls":
            return KafkaClaims(KafkaCluster(KafkaUrl.of(url)), cell=cell)
        case _:
            return RedisClaims(open_redis(url), cell=cell)


def _open_server_writer(
    url: str, *, cell: str, records_max: int = RECORDS_MAX
) -> KafkaWriter | RedisWriter:
    if _scheme(url) in {"kafka", "kafka+tls"}:
        return KafkaWriter(KafkaCluster(KafkaUrl.of(url)), log_topic(cell))
    return RedisWriter(open_redis(url), cell=cell, records_max=records_max)


def _scheme(url: str) -> str:
    scheme, colon, _ = url.partition(":")
    match scheme if colon else "":
        case (
            "redis" | "rediss" | "redis+cluster" | "rediss+cluster" | "grpc" | "kafka" | "kafka+tls"
        ):
            return scheme
        case "memory":
            raise ValueError(f"memory: works inside one process only; use {_FORMS}")
        case "":
            raise ValueError(f"a log's URL begins with a scheme; use {_FORMS}")
        case other:
            raise ValueError(f"{other}: is an unknown kind of log; use {_FORMS}")


def _addresses(url: str) -> list[str]:
    _, separator, rest = url.partition("grpc://")
    addresses = rest.rstrip("/").split(",") if separator else []
    if not addresses:
        raise ValueError(f"{url} names no indexer to push to; write grpc://HOST:PORT[,HOST:PORT…]")
    if "@" in rest:
        raise ValueError("grpc: takes no account; write grpc://HOST:PORT[,HOST:PORT…]")
    for address in addresses:
        if not is_host_and_port(address):
            raise ValueError(f"{address!r} is not HOST:PORT; write grpc://HOST:PORT[,HOST:PORT…]")
    if len(set(addresses)) < len(addresses):
        raise ValueError(f"{url} names an indexer twice")
    return addresses
