"""Opens the server or the cluster that a URL names."""

from kvatlas_events.redis.cluster import RedisCluster
from kvatlas_events.redis.server import ANSWER_S, RedisServer
from kvatlas_events.redis.url import RedisUrl

Redis = RedisServer | RedisCluster


def open_redis(url: str, *, answer_s: float = ANSWER_S) -> Redis:
    """Open the server or the cluster that `url` names; nothing is connected yet.

    Raises:
        ValueError: the URL cannot be used.
    """
    parsed = RedisUrl.of(url)
    kind = RedisCluster if parsed.is_cluster else RedisServer
    return kind(parsed, answer_s=answer_s)
