"""The URL of a Redis log, checked before anything connects.

    redis[s]://[USER:PASSWORD@]HOST:PORT[/DB][?OPTION=…&…]
    redis[s]+cluster://[USER:PASSWORD@]HOST:PORT[,HOST:PORT…][?OPTION=…&…]

No error of this module repeats a part of a URL that may be a secret.
"""

from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qs, urlencode, urlsplit

PORT = 6379
SHARDS_MAX = 64
"""Limit of one log, because a reader of a cluster opens a connection per shard."""
CLUSTER_SHARDS_DEFAULT = 8
"""Two or three shards for each of three nodes."""

_CLUSTER = "+cluster"
_FILES = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")
_TLS_OPTIONS = (*_FILES, "ssl_cert_reqs", "ssl_check_hostname")

Address = tuple[str, int]


@dataclass(frozen=True, slots=True)
class RedisUrl:
    """A server or a cluster, and how to log in; `of` parses a URL."""

    name: str
    """Scheme, addresses and database: the part that may be shown."""
    is_cluster: bool
    addresses: tuple[Address, ...]
    """The server, or nodes of the cluster to ask first."""
    shards: int
    _scheme: str
    _credentials: str
    _rest: str

    @classmethod
    def of(cls, url: str) -> "RedisUrl":
        """Parse `url`.

        Raises:
            ValueError: the URL cannot be used; one line says why and what to write instead.
        """
        scheme, _, _ = url.partition(":")
        try:
            parts = urlsplit(url)
            credentials, at, hosts = parts.netloc.rpartition("@")
            addresses = tuple(_address(host) for host in hosts.split(","))
            options = parse_qs(parts.query, keep_blank_values=True)
        except ValueError:
            raise ValueError(
                "host and port of this redis URL cannot be told apart; write "
                "redis://[USER:PASSWORD@]HOST:PORT[/DB], with %XX for special characters in PASSWORD"
            ) from None
        is_cluster = scheme.endswith(_CLUSTER)
        if not all(host for host, _ in addresses):
            raise ValueError(f"{scheme}:// without a host; write {scheme}://HOST:PORT")
        if len(addresses) > 1 and not is_cluster:
            raise ValueError(
                f"{scheme}:// names one server; for a cluster write "
                f"{scheme}{_CLUSTER}://HOST:PORT,…"
            )
        database = parts.path.strip("/")
        if is_cluster and database not in {"", "0"}:
            raise ValueError(f"{scheme}://: a cluster has no databases; end the URL after the port")
        shown = f"/{database}" if database.isdecimal() and not is_cluster else ""
        name = f"{scheme}://{','.join(map(_text, addresses))}{shown}"
        shards = _take_shards(name, options, CLUSTER_SHARDS_DEFAULT if is_cluster else 1)
        _check_options(scheme, name, options)
        return cls(
            name=name,
            is_cluster=is_cluster,
            addresses=addresses,
            shards=shards,
            _scheme=scheme.removesuffix(_CLUSTER),
            _credentials=credentials + at,
            _rest=f"{'' if is_cluster else parts.path}?{urlencode(options, doseq=True)}",
        )

    def at(self, address: Address) -> str:
        """Return the URL of one server for the client library, with the password."""
        return f"{self._scheme}://{self._credentials}{_text(address)}{self._rest}"


def _address(host_and_port: str) -> Address:
    parts = urlsplit(f"//{host_and_port}")
    return parts.hostname or "", parts.port or PORT


def _text(address: Address) -> str:
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _take_shards(name: str, options: dict[str, list[str]], default: int) -> int:
    """Remove `shards` from the options, because the client library does not know it."""
    text = options.pop("shards", [str(default)])[-1]
    if not (text.isascii() and text.isdecimal() and 1 <= int(text) <= SHARDS_MAX):
        raise ValueError(f"{name}: write ?shards=N with N from 1 to {SHARDS_MAX}")
    return int(text)


def _check_options(scheme: str, name: str, options: dict[str, list[str]]) -> None:
    known = _TLS_OPTIONS if scheme.startswith("rediss") else ()
    if wrong := sorted(set(options).difference(known)):
        raise ValueError(
            f"{name}: unknown option {wrong[0]}; every scheme takes shards, "
            f"rediss:// also takes {', '.join(_TLS_OPTIONS)}"
        )
    for option in _FILES:
        for path in options.get(option, []):
            if not Path(path).is_file():
                raise ValueError(f"{name}: {option}: there is no file {path}")
