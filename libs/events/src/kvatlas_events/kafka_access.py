"""What a Kafka URL says: the brokers to begin at, who we are to them, and how we know them.

    kafka[+tls]://[USER:PASSWORD@]HOST:PORT[,HOST:PORT…][?OPTION=VALUE[&…]]

Nothing of a URL that cannot be used is repeated but the names of files: any other part of it may
be a secret.
"""

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

FORM = "kafka[+tls]://[USER:PASSWORD@]HOST:PORT[,HOST:PORT…]"
SCHEMES = ("kafka", "kafka+tls")

_MECHANISM = "SCRAM-SHA-512"
"""Unless the URL names one: a server that is not ours does not learn the password by it."""
_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", _MECHANISM)
_SASL_OPTION = "sasl_mechanism"
_TLS_OPTIONS = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_check_hostname")
_OPTIONS = (_SASL_OPTION, *_TLS_OPTIONS)
_TRUTH = {"true": True, "false": False}


@dataclass(frozen=True, slots=True)
class KafkaAccess:
    """Where a cluster is, and what opens it."""

    addresses: tuple[str, ...]
    user: str | None = None
    password: str = field(default="", repr=False)
    mechanism: str = _MECHANISM
    tls: ssl.SSLContext | None = None

    @property
    def name(self) -> str:
        """The URL without what is secret."""
        return f"kafka{'+tls' if self.tls else ''}://{','.join(self.addresses)}"

    @property
    def options(self) -> dict[str, Any]:
        """The client library's, for each of its objects."""
        return {
            "bootstrap_servers": list(self.addresses),
            "security_protocol": f"{'SASL_' if self.user is not None else ''}"
            f"{'SSL' if self.tls else 'PLAINTEXT'}",
            "ssl_context": self.tls,
            "sasl_mechanism": self.mechanism,
            "sasl_plain_username": self.user,
            "sasl_plain_password": self.password,
        }


def access_of(url: str) -> KafkaAccess:
    """Read a URL; the files that it names are read too.

    Raises:
        ValueError: it cannot be used; one line says why.
    """
    scheme, separator, rest = url.partition("://")
    rest, _, query = rest.partition("?")
    credentials, _, places = rest.rpartition("@")
    addresses = tuple(places.rstrip("/").split(",")) if separator else ()
    if not addresses or not all(map(is_host_and_port, addresses)):
        raise ValueError(f"kafka: this URL is not of the form {FORM}")
    options = _options(query)
    tls = _tls(options) if scheme == "kafka+tls" else None
    if tls is None and not options.keys().isdisjoint(_TLS_OPTIONS):
        raise ValueError(f"kafka: {', '.join(_TLS_OPTIONS)} are options of kafka+tls://")
    if not credentials:
        if _SASL_OPTION in options:
            raise ValueError(f"kafka: {_SASL_OPTION} is for a user; write {FORM}")
        return KafkaAccess(addresses, tls=tls)
    user, colon, password = credentials.partition(":")
    if not (user and colon and password):
        raise ValueError(
            f"kafka: a user has a name and a password; write {FORM}, with %XX for special characters"
        )
    return KafkaAccess(
        addresses, unquote(user), unquote(password), mechanism=_mechanism(options), tls=tls
    )


def is_host_and_port(address: str) -> bool:
    """Whether this is HOST:PORT and nothing else."""
    try:
        parts = urlsplit(f"//{address}")
        return bool(parts.hostname and parts.port) and parts.netloc == address
    except ValueError:
        return False  # a port that is no number, or an IPv6 address without brackets


def _options(query: str) -> dict[str, str]:
    given = parse_qs(query, keep_blank_values=True)
    if not given.keys() <= set(_OPTIONS):
        raise ValueError(f"kafka: this URL has an option that is none of {', '.join(_OPTIONS)}")
    for name, values in given.items():
        if len(values) > 1 or not values[0]:
            raise ValueError(f"kafka: {name} has one value")
    return {name: values[0] for name, values in given.items()}


def _mechanism(options: Mapping[str, str]) -> str:
    mechanism = options.get(_SASL_OPTION, _MECHANISM)
    if mechanism not in _MECHANISMS:
        raise ValueError(f"kafka: {_SASL_OPTION} is one of {', '.join(_MECHANISMS)}")
    return mechanism


def _tls(options: Mapping[str, str]) -> ssl.SSLContext:
    authority, ours, key = (options.get(name) for name in _TLS_OPTIONS[:3])
    try:
        context = ssl.create_default_context(cafile=authority)
    except OSError as error:
        raise ValueError(f"kafka: ssl_ca_certs {authority} {_unreadable(error)}") from None
    if ours is not None:
        try:
            # The empty password: a locked key is an error, and no question on the terminal.
            context.load_cert_chain(ours, key, password="")
        except OSError as error:
            files = ours if key is None else f"{ours} with ssl_keyfile {key}"
            raise ValueError(f"kafka: ssl_certfile {files} {_unreadable(error)}") from None
    elif key is not None:
        raise ValueError("kafka: ssl_keyfile is of use only with ssl_certfile")
    said = options.get("ssl_check_hostname", "true")
    if said not in _TRUTH:
        raise ValueError("kafka: ssl_check_hostname is true or false")
    context.check_hostname = _TRUTH[said]
    return context


def _unreadable(error: OSError) -> str:
    if isinstance(error, ssl.SSLError):
        return "cannot be used: it is not in PEM, or its parts do not belong together"
    return f"cannot be read: {error.strerror}"
