"""Which headers go through, in either direction."""

from typing import Final

from multidict import CIMultiDict, CIMultiDictProxy

RANK_HEADER: Final = "X-data-parallel-rank"  # honoured by vLLM and SGLang
WORKER_HEADER: Final = "x-kvatlas-worker"
DEPTH_HEADER: Final = "x-kvatlas-depth"
REASON_HEADER: Final = "x-kvatlas-reason"

_DROPPED_UPSTREAM: Final = frozenset(
    (
        # Hop by hop: they speak of the client's connection.
        "connection",
        "expect",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        # Made anew for the engine's connection; the body goes on decoded.
        "content-encoding",
        "content-length",
        "host",
        # An answer that is compressed cannot be compared with what was promised.
        "accept-encoding",
        # The rank is ours to choose.
        RANK_HEADER.lower(),
    )
)
_PASSED_DOWNSTREAM: Final = frozenset(
    (
        "cache-control",
        "content-encoding",
        "content-language",
        "content-type",
        "retry-after",
        "x-request-id",
    )
)


def upstream_headers(client: CIMultiDictProxy[str], rank: str) -> CIMultiDict[str]:
    """The client's headers as the engine gets them, with the chosen rank pinned."""
    headers: CIMultiDict[str] = CIMultiDict()
    named = client.get("Connection")
    dropped = _DROPPED_UPSTREAM
    if named is not None and named.lower() not in ("keep-alive", "close"):
        dropped = dropped | {name.strip().lower() for name in named.split(",")}
    for name, value in client.items():
        lower = name.lower()
        if lower not in dropped and not lower.startswith("x-kvatlas-"):
            headers.add(name, value)
    headers[RANK_HEADER] = rank
    # It has been read as JSON, so it may be called that where the client called it nothing.
    headers.setdefault("Content-Type", "application/json")
    return headers


def downstream_headers(engine: CIMultiDictProxy[str]) -> CIMultiDict[str]:
    """The engine's headers as the client gets them: those with a meaning for it, and no others.

    A list of what passes, so that no header that names an engine can slip through.
    """
    headers: CIMultiDict[str] = CIMultiDict()
    for name, value in engine.items():
        if name.lower() in _PASSED_DOWNSTREAM:
            headers.add(name, value)
    return headers
