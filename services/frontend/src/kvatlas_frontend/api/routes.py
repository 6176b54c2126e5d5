"""The routes that the frontend serves, in one table. Every other path is answered with 404.

A client must never reach an engine's administration (`/flush_cache`, `/update_weights`, `/sleep`,
`/start_profile`, `/v1/load_lora_adapter`, `/collective_rpc`, …), nor what tells about its inside
(`/metrics`, `/server_info`, `/tokenizer_info`). So nothing is passed by default: a route is served
only if it stands here. Paths are compared as sent, without normalization.

The table follows the servers of vLLM (`docs/serving/online_serving/README.md`, and the list of
routes in `docs/usage/security.md`) and of SGLang (`sglang/srt/entrypoints/http_server.py`).
"""

import re
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final


class Kind(Enum):
    """How a request is read and answered."""

    COMPLETIONS = auto()  # the prompt is tokenized; the worker is chosen by its cache
    CHAT = auto()  # the same, once the conversation is rendered
    MESSAGES = auto()  # the same, in Anthropic's form
    RESPONSES = auto()  # the same, in the form of OpenAI's Responses API
    RESPONSE = auto()  # about a stored response: passed to the engine that has it
    PASSED = auto()  # only the model is read; the worker is chosen by load
    BODYLESS = auto()  # nothing is read; any worker answers, chosen by load
    MODELS = auto()  # answered here: the list of models
    MODEL = auto()  # answered here: one model
    HEALTH = auto()  # answered here: whether any worker is available


@dataclass(frozen=True, slots=True)
class Route:
    """One route. Several paths may share one; `label` names it in metrics."""

    kind: Kind
    label: str
    methods: tuple[str, ...] = ("POST",)


_READ: Final = ("GET", "HEAD")
_RERANK: Final = Route(Kind.PASSED, "rerank")
_SCORE: Final = Route(Kind.PASSED, "score")
_CLASSIFY: Final = Route(Kind.PASSED, "classify")
_TOKENIZE: Final = Route(Kind.PASSED, "tokenize")
_DETOKENIZE: Final = Route(Kind.PASSED, "detokenize")

TABLE: Final[dict[str, Route]] = {
    "/v1/completions": Route(Kind.COMPLETIONS, "completions"),
    "/v1/chat/completions": Route(Kind.CHAT, "chat"),
    "/v1/responses": Route(Kind.RESPONSES, "responses"),
    "/v1/messages": Route(Kind.MESSAGES, "messages"),
    "/v1/messages/count_tokens": Route(Kind.PASSED, "count_tokens"),
    "/v1/embeddings": Route(Kind.PASSED, "embeddings"),
    "/v2/embed": Route(Kind.PASSED, "embed"),
    "/rerank": _RERANK,
    "/v1/rerank": _RERANK,
    "/v2/rerank": _RERANK,
    "/score": _SCORE,
    "/v1/score": _SCORE,
    "/pooling": Route(Kind.PASSED, "pooling"),
    "/classify": _CLASSIFY,
    "/v1/classify": _CLASSIFY,
    "/tokenize": _TOKENIZE,
    "/v1/tokenize": _TOKENIZE,
    "/detokenize": _DETOKENIZE,
    "/v1/detokenize": _DETOKENIZE,
    "/v1/audio/transcriptions": Route(Kind.PASSED, "transcriptions"),
    "/v1/audio/translations": Route(Kind.PASSED, "translations"),
    "/version": Route(Kind.BODYLESS, "version", _READ),
    "/v1/models": Route(Kind.MODELS, "models", _READ),
    "/health": Route(Kind.HEALTH, "health", _READ),
}
"""Routes by path."""

PATTERNS: Final[tuple[tuple[re.Pattern[str], Route], ...]] = (
    (
        re.compile(r"/v1/responses/([A-Za-z0-9_.-]{1,256})"),
        Route(Kind.RESPONSE, "response", ("GET", "DELETE")),
    ),
    (
        re.compile(r"/v1/responses/([A-Za-z0-9_.-]{1,256})/cancel"),
        Route(Kind.RESPONSE, "response_cancel"),
    ),
    # A model's id may have slashes in it, which clients send as they are or percent-encoded.
    (re.compile(r"/v1/models/(.+)"), Route(Kind.MODEL, "model", _READ)),
)
"""Routes whose path has an id in it."""

OTHER_LABEL: Final = "other"
LABELS: Final = frozenset(
    (*(route.label for route in TABLE.values()), *(route.label for _, route in PATTERNS), OTHER_LABEL)
)  # fmt: skip


def find_route(path: str) -> tuple[Route, str] | None:
    """The route of a path, and the id in it, still percent-encoded; "": the route has none."""
    route = TABLE.get(path)
    if route is not None:
        return route, ""
    for pattern, route in PATTERNS:
        found = pattern.fullmatch(path)
        if found is not None:
            return route, found[1]
    return None


def label_of(path: str) -> str:
    """The label of a path in metrics."""
    found = find_route(path)
    return OTHER_LABEL if found is None else found[0].label
