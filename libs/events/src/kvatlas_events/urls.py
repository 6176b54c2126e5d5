"""From a `--log` URL to what appends to it or reads it.

The URL's form is checked here, before anything connects: a wrong one is a `ValueError` of one line
that says what to write instead, an unreachable server never is.
"""

from urllib.parse import urlsplit

from kvatlas_events.log import LogReader, LogWriter

_FORMS = "redis://HOST:PORT, rediss://HOST:PORT or grpc://HOST:PORT[,HOST:PORT…]"


def open_writers(url: str, *, cell: str) -> list[LogWriter]:
    """Open every destination that `url` names; nothing is connected yet.

    `grpc://a:1,b:2` gives two writers, so that each replica fails alone.

    Raises:
        ValueError: the URL cannot be used; the message says why and never holds a password.
    """
    scheme = _scheme(url)
    raise ValueError(f"{scheme}: not implemented yet; cell {cell}")


def open_reader(url: str, *, cell: str) -> LogReader | None:
    """Open the log that `url` names from its beginning; nothing is connected yet.

    None for `grpc:`: the indexer's own server takes the records.

    Raises:
        ValueError: the URL cannot be used; the message says why and never holds a password.
    """
    scheme = _scheme(url)
    raise ValueError(f"{scheme}: not implemented yet; cell {cell}")


def _scheme(url: str) -> str:
    scheme = urlsplit(url).scheme
    if scheme == "memory":
        raise ValueError("memory: lives inside one process; between processes use " + _FORMS)
    if scheme == "kafka":
        raise ValueError("kafka: is not in this build; use " + _FORMS)
    if scheme not in {"redis", "rediss", "grpc"}:
        raise ValueError(f"unknown log {scheme or url!r}; use " + _FORMS)
    return scheme
