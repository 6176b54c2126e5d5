"""The URL of a Kafka log: first brokers, login and TLS. Checked before anything connects.

    kafka[+tls]://[USER:PASSWORD@]HOST:PORT[,HOST:PORT…][?OPTION=VALUE[&…]]

Errors repeat no part of the URL but names of files: any other part may be a secret.
"""

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

FORM = "kafka[+tls]://[USER:PASSWORD@]HOST:PORT[,HOST:PORT…]"

_MECHANISM = "SCRAM-SHA-512"
"""The default; with it a foreign server does not learn the password."""
_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", _MECHANISM)
_SASL_OPTION = "sasl_mechanism"
_TLS_OPTIONS = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_check_hostname")
_OPTIONS = (_SASL_OPTION, *_TLS_OPTIONS)
_BOOLEANS = {"true": True, "false": False}


@dataclass(frozen=True, slots=True)
class KafkaUrl:
    """Brokers of a cluster, and how to log in; `of` parses a URL."""

    addresses: tuple[str, ...]
    user: str | None = None
    password: str = field(default="", repr=False)
    mechanism: str = _MECHANISM
    tls: ssl.SSLContext | None = None

    @classmethod
    def of(cls, url: str) -> "KafkaUrl":
        """Parse `url`, and read the files that it names.

        Raises:
            ValueError: the URL cannot be used; one line says why.
        """
        scheme, separator, rest = url.partition("://")
        rest, _, query = rest.partition("?")
        credentials, _, hosts = rest.rpartition("@")
        addresses = tuple(hosts.rstrip("/").split(",")) if separator else ()
        if not addresses or not all(map(is_host_and_port, addresses)):
            raise ValueError(f"kafka: this URL is not of the form {FORM}")
        options = _options(query)
        tls = _tls_context(options) if scheme == "kafka+tls" else None
        if tls is None and not options.keys().isdisjoint(_TLS_OPTIONS):
            raise ValueError(f"kafka: {', '.join(_TLS_OPTIONS)} are options of kafka+tls://")
        if not credentials:
            if _SASL_OPTION in options:
                raise ValueError(f"kafka: {_SASL_OPTION} needs a user; write {FORM}")
            return cls(addresses, tls=tls)
        user, colon, password = credentials.partition(":")
        if not (user and colon and password):
            raise ValueError(
                f"kafka: a user needs a name and a password; write {FORM}, "
                "with %XX for special characters"
            )
        return cls(
            addresses, unquote(user), unquote(password), mechanism=_mechanism(options), tls=tls
        )

    @property
    def name(self) -> str:
        """The URL without its secrets."""
        return f"kafka{'+tls' if self.tls else ''}://{','.join(self.addresses)}"

    @property
    def options(self) -> dict[str, Any]:
        """Options for the client library's objects."""
        return {
            "bootstrap_servers": list(self.addresses),
            "security_protocol": f"{'SASL_' if self.user is not None else ''}"
            f"{'SSL' if self.tls else 'PLAINTEXT'}",
            "ssl_context": self.tls,
            "sasl_mechanism": self.mechanism,
            "sasl_plain_username": self.user,
            "sasl_plain_password": self.password,
        }


def is_host_and_port(address: str) -> bool:
    """Whether `address` is HOST:PORT and nothing else."""
    try:
        parts = urlsplit(f"//{address}")
        return bool(parts.hostname and parts.port) and parts.netloc == address
    except ValueError:
        return False  # the port is not a number, or an IPv6 address has no brackets


def _options(query: str) -> dict[str, str]:
    given = parse_qs(query, keep_blank_values=True)
    if not given.keys() <= set(_OPTIONS):
        raise ValueError(
            f"kafka: this URL has an unknown option; the options are {', '.join(_OPTIONS)}"
        )
    for name, values in given.items():
        if len(values) > 1 or not values[0]:
            raise ValueError(f"kafka: {name} takes exactly one value")
    return {name: values[0] for name, values in given.items()}


def _mechanism(options: Mapping[str, str]) -> str:
    mechanism = options.get(_SASL_OPTION, _MECHANISM)
    if mechanism not in _MECHANISMS:
        raise ValueError(f"kafka: {_SASL_OPTION} must be one of {', '.join(_MECHANISMS)}")
    return mechanism


def _tls_context(options: Mapping[str, str]) -> ssl.SSLContext:
    authority, certificate, key = (options.get(name) for name in _TLS_OPTIONS[:3])
    try:
        context = ssl.create_default_context(cafile=authority)
    except OSError as error:
        raise ValueError(f"kafka: ssl_ca_certs {authority} {_reason(error)}") from None
    if certificate is not None:
        try:
            # With an empty password a locked key is an error, not a question on the terminal.
            context.load_cert_chain(certificate, key, password="")
        except OSError as error:
            files = certificate if key is None else f"{certificate} with ssl_keyfile {key}"
            raise ValueError(f"kafka: ssl_certfile {files} {_reason(error)}") from None
    elif key is not None:
        raise ValueError("kafka: ssl_keyfile needs ssl_certfile")
    text = options.get("ssl_check_hostname", "true")
    if text not in _BOOLEANS:
        raise ValueError("kafka: ssl_check_hostname must be true or false")
    context.check_hostname = _BOOLEANS[text]
    return context


def _reason(error: OSError) -> str:
    if isinstance(error, ssl.SSLError):
        return "cannot be used: it is not in PEM, or its parts do not match"
    return f"cannot be read: {error.strerror}"
