"""The two generation endpoints: faults, admission, streams, and clients that leave."""

import asyncio
import time
from collections.abc import Awaitable, Callable

from aiohttp import web

from kvatlas_mocker.answers import Answer, ChatAnswer, CompletionAnswer, usage_of
from kvatlas_mocker.api import ApiError, ChatBody, CompletionBody, parse
from kvatlas_mocker.engine import Engine
from kvatlas_mocker.faults import Switch
from kvatlas_mocker.generation import Generation, read_chat, read_completion
from kvatlas_mocker.metrics import EngineMetrics
from kvatlas_mocker.rank import EngineRestartedError, Ticket
from kvatlas_mocker.scheduler import Sampled

RANK_HEADER = "x-mock-engine-rank"
"""Says which rank served an answer; vLLM has no such header, so tests can ask and clients need not."""

_STREAM_HEADERS = {"Content-Type": "text/event-stream; charset=utf-8"}
_JSON = "application/json"
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Generations:
    """Serves `/v1/completions` and `/v1/chat/completions`.

    The server cancels a handler when its client disconnects; the request is then aborted and its
    blocks freed.
    """

    def __init__(self, engine: Engine, metrics: EngineMetrics) -> None:
        self._engine = engine
        self._metrics = metrics

    async def completions(self, http: web.Request) -> web.StreamResponse:
        """`POST /v1/completions`."""
        fault = await self._begin(http)
        order = await read_completion(self._engine, parse(await http.read(), CompletionBody))
        return await self._generate(http, order, CompletionAnswer(order, _shown(order)), fault)

    async def chat(self, http: web.Request) -> web.StreamResponse:
        """`POST /v1/chat/completions`."""
        fault = await self._begin(http)
        order = await read_chat(self._engine, parse(await http.read(), ChatBody))
        return await self._generate(http, order, ChatAnswer(order, _shown(order)), fault)

    async def _begin(self, http: web.Request) -> Switch | None:
        fault = self._engine.faults.for_request()
        if fault == "error_500":
            raise ApiError("Internal server error", status=500, kind="InternalServerError")
        if fault == "die_before_first_byte":
            await _drop_connection(http)
        if fault == "hang":
            await _until_cancelled()
        return fault

    async def _generate(
        self, http: web.Request, order: Generation, answer: Answer, fault: Switch | None
    ) -> web.StreamResponse:
        arrived_s = time.monotonic()
        rank = self._engine.rank(http.headers.get("X-data-parallel-rank"))
        prompt_tokens = len(order.prompt)
        ticket = self._engine.submit(rank, order.prompt, order.key, output_max=order.output_max)
        die_after = self._engine.faults.after_tokens if fault == "die_mid_stream" else None
        tokens = _Tokens(
            ticket,
            self._metrics,
            http,
            arrived_s=arrived_s,
            finish_reason=order.finish_reason,
            die_after=die_after,
        )
        try:
            if order.stream:
                return await self._stream(http, order, answer, tokens)
            said = [sampled.token async for sampled in tokens]
            text = "".join(self._engine.tokenizer.piece(token) for token in said)
            usage = usage_of(prompt_tokens, len(said), tokens.cached)
            return web.Response(
                body=answer.whole(text, said, usage),
                content_type=_JSON,
                headers={RANK_HEADER: str(ticket.rank)},
            )
        except EngineRestartedError:
            return await _drop_connection(http)
        finally:
            rank.abort(ticket)

    async def _stream(
        self, http: web.Request, order: Generation, answer: Answer, tokens: "_Tokens"
    ) -> web.StreamResponse:
        headers = _STREAM_HEADERS | {RANK_HEADER: str(tokens.rank)}
        response = web.StreamResponse(headers=headers)
        await response.prepare(http)
        opening = answer.opening()
        async for sampled in tokens:
            piece = self._engine.tokenizer.piece(sampled.token)
            finish = order.finish_reason if sampled.last else None
            data = opening + answer.chunk(piece, sampled.token, finish)
            opening = b""
            if sampled.last:
                data += answer.closing(usage_of(tokens.prompt, tokens.count, tokens.cached))
            await response.write(data)
        await response.write_eof()
        return response


class _Tokens:
    """The tokens of one ticket as they come, measured; dies where a fault says so."""

    def __init__(
        self,
        ticket: Ticket,
        metrics: EngineMetrics,
        http: web.Request,
        *,
        arrived_s: float,
        finish_reason: str,
        die_after: int | None,
    ) -> None:
        self.rank = ticket.rank
        self.prompt = ticket.request.prompt_tokens
        self.count = 0
        self._ticket = ticket
        self._finish_reason = finish_reason
        self._metrics = metrics
        self._arrived_s = arrived_s
        self._previous_s = arrived_s
        self._http = http
        self._die_after = die_after
        self._ended = False

    @property
    def cached(self) -> int:
        """Prompt tokens that were cached; known from the first token on."""
        return self._ticket.request.cached_tokens or 0

    def __aiter__(self) -> "_Tokens":
        return self

    async def __anext__(self) -> Sampled:
        if self._ended:
            raise StopAsyncIteration
        if self._die_after is not None and self.count >= self._die_after:
            await _drop_connection(self._http)
        sampled = await self._ticket.next()
        now_s = time.monotonic()
        if self.count:
            self._metrics.next_token(self.rank, now_s - self._previous_s)
        else:
            self._metrics.first_token(self.rank, now_s - self._arrived_s)
        self._previous_s = now_s
        self.count += 1
        if sampled.last:
            self._ended = True
            self._metrics.finished(self.rank, now_s - self._arrived_s, self._finish_reason)
        return sampled


def _shown(order: Generation) -> list[int] | None:
    return order.prompt.tolist() if order.return_token_ids else None


async def _drop_connection(http: web.Request) -> web.StreamResponse:
    """Close the client's connection as a dying process does: what was written goes out, no more."""
    if http.transport is not None:
        http.transport.close()
    return await _until_cancelled()


async def _until_cancelled() -> web.StreamResponse:
    """The server cancels the handler when the connection is gone."""
    return await asyncio.get_running_loop().create_future()
