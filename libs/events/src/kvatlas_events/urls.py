"""From a `--log` URL to what appends to it or reads it.

The URL's form is checked here, before anything connects: a wrong one is a `ValueError` of one line
that says what to write instead, an unreachable server never is.
"""

from kvatlas_events.claims import ClaimRegister
from kvatlas_events.grpc_log import GrpcWriter
from kvatlas_events.kafka_access import access_of, is_host_and_port
from kvatlas_events.kafka_claims import KafkaClaims
from kvatlas_events.kafka_log import KafkaReader, KafkaWriter
from kvatlas_events.kafka_server import KafkaServer
from kvatlas_events.kafka_topics import log_topic
from kvatlas_events.log import LogPosition, LogProber, LogReader, LogWriter
from kvatlas_events.redis_claims import RedisClaims
from kvatlas_events.redis_log import RECORDS_MAX, RedisReader, RedisWriter, open_redis

LOG_SERVER_URLS = (
    "redis://H:P, redis+cluster://H:P[,H:P...] or kafka://H:P[,H:P...]; with TLS rediss://, "
    "rediss+cluster:// or kafka+tls://; with an account USER:PASSWORD@ before H:P; options behind "
    "it as ?NAME=VALUE&...: shards of Redis, sasl_mechanism of Kafka, ssl_ca_certs, ssl_certfile, "
    "ssl_keyfile and ssl_check_hostname of TLS"
)
"""What `--log` takes besides `grpc:`, in the words of every `--help` and every error."""

_FORMS = f"grpc://H:P[,H:P...], {LOG_SERVER_URLS}"


def open_writers(url: str, *, cell: str, records_max: int = RECORDS_MAX) -> list[LogWriter]:
    """Open every destination that `url` names; nothing is connected yet.

    `grpc://a:1,b:2` gives two writers, so that each replica fails alone. `records_max`: about so
    many of the newest records stay in a log that is a server's.

    Raises:
        ValueError: the URL cannot be used; the message says why and never holds a password.
    """
    match _scheme(url):
        case "grpc":
            return [GrpcWriter(address) for address in _addresses(url)]
        case "kafka" | "kafka+tls":
            return [KafkaWriter(KafkaServer(access_of(url)), log_topic(cell))]
        case _:
            return [RedisWriter(open_redis(url), cell=cell, records_max=records_max)]


def open_reader(url: str, *, cell: str, position: LogPosition | None = None) -> LogReader | None:
    """Open the log that `url` names, from its beginning or `position`; nothing is connected yet.

    None for `grpc:`: the indexer's own server takes the records.

    Raises:
        ValueError: the URL cannot be used; the message says why and never holds a password.
    """
    match _scheme(url):
        case "grpc":
            return None
        case "kafka" | "kafka+tls":
            return KafkaReader(KafkaServer(access_of(url)), log_topic(cell), position=position)
        case _:
            return RedisReader(open_redis(url), cell=cell, position=position)


def open_prober(url: str, *, cell: str) -> LogProber | None:
    """Open what shows that the log takes what is appended; nothing is connected yet.

    None for `grpc:`: there is no log between publishers and the indexer.

    Raises:
        ValueError: the URL cannot be used; the message says why and never holds a password.
    """
    match _scheme(url):
        case "grpc":
            return None
        case "kafka" | "kafka+tls":
            return KafkaWriter(KafkaServer(access_of(url)), log_topic(cell))
        case _:
            return RedisWriter(open_redis(url), cell=cell)


def open_claims(url: str, *, cell: str) -> ClaimRegister | None:
    """Open the claims of the log that `url` names; nothing is connected yet.

    None for `grpc:`: the indexer itself tells a publisher that another one is newer.

    Raises:
        ValueError: the URL cannot be used; the message says why and never holds a password.
    """
    match _scheme(url):
        case "grpc":
            return None
        case "kafka" | "kafka+tls":
            return KafkaClaims(KafkaServer(access_of(url)), cell=cell)
        case _:
            return RedisClaims(open_redis(url), cell=cell)


def _scheme(url: str) -> str:
    scheme, colon, _ = url.partition(":")
    match scheme if colon else "":
        case (
            "redis" | "rediss" | "redis+cluster" | "rediss+cluster" | "grpc" | "kafka" | "kafka+tls"
        ):
            return scheme
        case "memory":
            raise ValueError(f"memory: lives inside one process; between processes use {_FORMS}")
        case "":
            raise ValueError(f"a log's URL has a scheme; use {_FORMS}")
        case other:
            raise ValueError(f"{other}: is no log that kvatlas knows; use {_FORMS}")


def _addresses(url: str) -> list[str]:
    _, separator, rest = url.partition("grpc://")
    addresses = rest.rstrip("/").split(",") if separator else []
    if not addresses:
        raise ValueError(f"{url} names no indexer to push to; write grpc://HOST:PORT[,HOST:PORT…]")
    if "@" in rest:
        raise ValueError("grpc: takes no account; write grpc://HOST:PORT[,HOST:PORT…]")
    for address in addresses:
        if not is_host_and_port(address):
            raise ValueError(f"{address!r} is no HOST:PORT; write grpc://HOST:PORT[,HOST:PORT…]")
    if len(set(addresses)) < len(addresses):
        raise ValueError(f"{url} names an indexer twice")
    return addresses
