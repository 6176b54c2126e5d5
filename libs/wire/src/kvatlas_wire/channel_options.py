"""Options of every gRPC channel that the Python code opens."""

from typing import Any, Final

CHANNEL_OPTIONS: Final[tuple[tuple[str, Any], ...]] = (
    # Replicas and publishers are addressed directly; a proxy in the environment is for other hosts.
    ("grpc.enable_http_proxy", 0),
    # Channels in one process share no connection, so a reconnect pause of one delays no other.
    ("grpc.use_local_subchannel_pool", 1),
    # A status names every worker of the cell.
    ("grpc.max_receive_message_length", 64 << 20),
)
# For channels that stay open and connect again by themselves.
LASTING_CHANNEL_OPTIONS: Final = (
    *CHANNEL_OPTIONS,
    ("grpc.initial_reconnect_backoff_ms", 100),
    # grpcio takes this as the timeout of a connection attempt; a refused one is retried earlier.
    ("grpc.min_reconnect_backoff_ms", 5_000),
    ("grpc.max_reconnect_backoff_ms", 1_000),
)
# For long streams with silences: pings tell an idle server from a vanished host.
STREAM_CHANNEL_OPTIONS: Final = (
    *LASTING_CHANNEL_OPTIONS,
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
)
