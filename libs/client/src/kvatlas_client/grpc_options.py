"""How grpcio's channels are set up, for threads and for asyncio."""

from typing import Any, Final

OPTIONS: Final[tuple[tuple[str, Any], ...]] = (
    # Replicas are addressed directly; a proxy in the environment is meant for the outside.
    ("grpc.enable_http_proxy", 0),
    # Two clients in one process do not share a connection, so that one's troubles are its own.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    # A connection has so long to be made, for that is what grpcio takes this for; one that is refused is tried again sooner.
    ("grpc.min_reconnect_backoff_ms", 5_000),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.max_receive_message_length", 64 << 20),
)
# A stream of workers can be silent for long; pings tell a quiet replica from a vanished host.
STREAM_OPTIONS: Final = (
    *OPTIONS,
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
)
