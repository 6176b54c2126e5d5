"""Prepare plugins for facts that tie requests together: session, tenant, a key to hash, a length.

They tokenize nothing. A key of more than `_KEY_CHARS_MAX` characters is replaced by its digest, so
tables of keys are bounded by their number of entries.
"""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, Final, Literal, cast

import xxhash
from pydantic import Field

from kvatlas_chassis import Settings
from kvatlas_frontend.api.body import ChatPrompt, TextPrompt, TokenPrompt
from kvatlas_frontend.routing.context import RoutingContext, Slot
from kvatlas_frontend.routing.plugin import Kind, PluginSpec, Services
from kvatlas_frontend.routing.slots import (
    CHUNK_HASHES,
    HASH_KEY,
    PARENT_SESSION,
    REQUEST,
    SESSION,
    TENANT,
    TOKEN_ESTIMATE,
    RoutingRequest,
)

_KEY_CHARS_MAX: Final = 128

SESSION_HEADERS: Final = (
    "x-session-affinity",
    "session-id",
    "x-claude-code-session-id",
    "x-dynamo-session-id",
)


class _WaitsForNothing(ABC):
    """A preparer that computes at once, so that a request may be routed without a task."""

    def __init__(self, services: Services) -> None:
        self._now_s = services.now_s

    @abstractmethod
    def write(self, context: RoutingContext) -> None:
        """Write the plugin's slot."""

    def prepare_now(self, context: RoutingContext) -> float | None:
        """See `ImmediatePreparer`."""
        began_s = self._now_s()
        self.write(context)
        return self._now_s() - began_s

    async def prepare(self, context: RoutingContext) -> None:
        """See `Preparer`."""
        self.write(context)


class SessionParams(Settings):
    """`headers`: where a session's id is looked for, in this order.

    `use_user`: without such a header, take `user` of the request's body.
    """

    headers: tuple[str, ...] = SESSION_HEADERS
    use_user: bool = True


class SessionPlugin(_WaitsForNothing):
    """Writes the session's id: the first of the headers that has a value, else the body's `user`."""

    def __init__(self, services: Services, params: SessionParams) -> None:
        super().__init__(services)
        self._headers = params.headers
        self._use_user = params.use_user

    def write(self, context: RoutingContext) -> None:
        """See `_WaitsForNothing`."""
        request = context[REQUEST]
        key = _first_header(request, self._headers)
        if not key and self._use_user:
            key = request.body.user
        context[SESSION] = bounded(key)


class ParentSessionParams(Settings):
    """`headers`: where the id of the session that started this one is looked for, in this order."""

    headers: tuple[str, ...] = ("x-parent-session-id", "x-dynamo-parent-session-id")


class ParentSessionPlugin(_WaitsForNothing):
    """Writes the id of the session that started this one, as agents do for their subagents."""

    def __init__(self, services: Services, params: ParentSessionParams) -> None:
        super().__init__(services)
        self._headers = params.headers

    def write(self, context: RoutingContext) -> None:
        """See `_WaitsForNothing`."""
        context[PARENT_SESSION] = bounded(_first_header(context[REQUEST], self._headers))


class TenantParams(Settings):
    """`header`: names the tenant, as a gateway sets it; "": there is none.

    Without it the tenant is a digest of the request's bearer token.
    """

    header: str = ""


class TenantPlugin(_WaitsForNothing):
    """Writes the tenant. A token itself is never kept: it is a secret."""

    def __init__(self, services: Services, params: TenantParams) -> None:
        super().__init__(services)
        self._header = params.header

    def write(self, context: RoutingContext) -> None:
        """See `_WaitsForNothing`."""
        request = context[REQUEST]
        tenant = _first_header(request, (self._header,)) if self._header else ""
        context[TENANT] = bounded(tenant) or _token_digest(request)


class HashKeyParams(Settings):
    """`by`: facts in order of preference; the first that the request has is hashed.

    `blocks`: number of the prompt's first blocks that `blocks` stands for.
    """

    by: tuple[Literal["session", "parent-session", "tenant", "blocks"], ...] = Field(
        default=("session",), min_length=1
    )
    blocks: int = Field(default=4, gt=0)


_FACTS: Final[dict[str, Slot[Any]]] = {
    "session": SESSION,
    "parent-session": PARENT_SESSION,
    "tenant": TENANT,
    "blocks": CHUNK_HASHES,
}


class HashKeyPlugin(_WaitsForNothing):
    """Writes a hash of the first fact that the request has; requests that share it stay together."""

    def __init__(self, services: Services, params: HashKeyParams) -> None:
        super().__init__(services)
        self._by = params.by
        self._blocks = params.blocks

    def write(self, context: RoutingContext) -> None:
        """See `_WaitsForNothing`."""
        context[HASH_KEY] = next(
            filter(None, (self._hash(context, fact) for fact in self._by)), None
        )

    def _hash(self, context: RoutingContext, fact: str) -> int | None:
        value = context[_FACTS[fact]]
        if not len(value):
            return None
        data = value.encode() if isinstance(value, str) else value[: self._blocks].tobytes()
        return xxhash.xxh3_64_intdigest(data)


class TokenEstimateParams(Settings):
    """`chars_per_token`: characters that make a token, about."""

    chars_per_token: float = Field(default=4.0, gt=0)


class TokenEstimatePlugin(_WaitsForNothing):
    """Writes the prompt's length in tokens, about: its characters divided by four.

    For policies that tokenize nothing, so that the load of a long prompt counts for more than that of
    a short one.
    """

    def __init__(self, services: Services, params: TokenEstimateParams) -> None:
        super().__init__(services)
        self._chars_per_token = params.chars_per_token

    def write(self, context: RoutingContext) -> None:
        """See `_WaitsForNothing`."""
        prompt = context[REQUEST].body.prompt
        match prompt:
            case TokenPrompt():
                tokens = len(prompt.tokens)
            case TextPrompt():
                tokens = round(len(prompt.text) / self._chars_per_token)
            case ChatPrompt():
                chars = sum(_content_chars(message) for message in prompt.messages)
                tokens = round(chars / self._chars_per_token)
            case _:
                tokens = 0
        context[TOKEN_ESTIMATE] = tokens


def bounded(key: str) -> str:
    """A key as it is, or the digest of a long one."""
    if len(key) <= _KEY_CHARS_MAX:
        return key
    return xxhash.xxh3_128_hexdigest(key.encode(errors="surrogatepass"))


def _first_header(request: RoutingRequest, names: Iterable[str]) -> str:
    return next(filter(None, (request.header(name) for name in names)), "")


def _token_digest(request: RoutingRequest) -> str:
    scheme, _, token = (request.header("authorization") or "").partition(" ")
    if scheme.lower() != "bearer" or not token:
        return ""
    return hashlib.blake2b(token.strip().encode(errors="surrogatepass"), digest_size=16).hexdigest()


def _content_chars(message: dict[str, Any]) -> int:
    content = message.get("content")
    if isinstance(content, str):
        return len(content)
    if not isinstance(content, list):
        return 0
    texts = (
        cast("dict[str, object]", part).get("text")
        for part in cast("list[object]", content)
        if isinstance(part, dict)
    )
    return sum(len(text) for text in texts if isinstance(text, str))


def _hash_key_reads(params: HashKeyParams) -> tuple[Slot[Any], ...]:
    return tuple(_FACTS[fact] for fact in params.by)


SPECS: Final[tuple[PluginSpec[Any], ...]] = (
    PluginSpec("session", Kind.PREPARE, SessionParams, SessionPlugin, (REQUEST,), (SESSION,)),
    PluginSpec(
        "parent-session",
        Kind.PREPARE,
        ParentSessionParams,
        ParentSessionPlugin,
        (REQUEST,),
        (PARENT_SESSION,),
    ),
    PluginSpec("tenant", Kind.PREPARE, TenantParams, TenantPlugin, (REQUEST,), (TENANT,)),
    PluginSpec(
        "hash-key", Kind.PREPARE, HashKeyParams, HashKeyPlugin, _hash_key_reads, (HASH_KEY,)
    ),
    PluginSpec(
        "token-estimate",
        Kind.PREPARE,
        TokenEstimateParams,
        TokenEstimatePlugin,
        (REQUEST,),
        (TOKEN_ESTIMATE,),
    ),
)
