"""The two generation endpoints: faults, admission, streaming and disconnected clients."""

import asyncio
import time
from collections.abc import Awaitable, Callable

from aiohttp import web

from kvatlas_mocker.answers import Answer, ChatAnswer, CompletionAnswer, usage_object
from kvatlas_mocker.bodies import ApiError, ChatBody, CompletionBody, parse
from kvatlas_mocker.engine import Engine
from kvatlas_mocker.faults import Switch
from kvatlas_mocker.generation import Generation, read_chat, read_completion
from kvatlas_mocker.metrics import EngineMetrics
from kvatlas_mocker.rank import EngineRestartedError, TokenStream
from kvatlas_mocker.scheduler import Sampled

RANK_HEADER = "x-mock-engine-rank"
"""Names the rank that served an answer, for tests; vLLM has no such header."""

_STREAM_HEADERS = {"Content-Type": "text/event-stream; charset=utf-8"}
_JSON = "application/json"
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class GenerationHandlers:
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
        generation = await read_completion(self._engine, parse(await http.read(), CompletionBody))
        return await self._generate(
            http, generation, CompletionAnswer(generation, _returned_prompt(generation)), fault
        )

    async def chat(self, http: web.Request) -> web.StreamResponse:
        """`POST /v1/chat/completions`."""
        fault = await self._begin(http)
        generation = await read_chat(self._engine, parse(await http.read(), ChatBody))
        return await self._generate(
            http, generation, ChatAnswer(generation, _returned_prompt(generation)), fault
        )

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
        self, http: web.Request, generation: Generation, answer: Answer, fault: Switch | None
    ) -> web.StreamResponse:
        arrived_s = time.monotonic()
        rank = self._engine.rank(http.headers.get("X-data-parallel-rank"))
        prompt_tokens = len(generation.prompt)
        stream = self._engine.submit(
            rank, generation.prompt, generation.key, output_max=generation.output_max
        )
        die_after = self._engine.faults.after_tokens if fault == "die_mid_stream" else None
        tokens = _MeasuredTokens(
            stream,
            self._metrics,
            http,
            arrived_s=arrived_s,
            finish_reason=generation.finish_reason,
            die_after=die_after,
        )
        try:
            if generation.stream:
                return await self._stream(http, generation, answer, tokens)
            output = [sampled.token async for sampled in tokens]
            text = "".join(self._engine.tokenizer.piece(token) for token in output)
            usage = usage_object(prompt_tokens, len(output), tokens.cached)
            return web.Response(
                body=answer.whole(text, output, usage),
                content_type=_JSON,
                headers={RANK_HEADER: str(stream.rank)},
            )
        except EngineRestartedError:
            return await _drop_connection(http)
        finally:
            rank.abort(stream)

    async def _stream(
        self, http: web.Request, generation: Generation, answer: Answer, tokens: "_MeasuredTokens"
    ) -> web.StreamResponse:
        headers = _STREAM_HEADERS | {RANK_HEADER: str(tokens.rank)}
        response = web.StreamResponse(headers=headers)
        await response.prepare(http)
        opening = answer.opening()
        async for sampled in tokens:
            piece = self._engine.tokenizer.piece(sampled.token)
            finish = generation.finish_reason if sampled.last else None
            data = opening + answer.chunk(piece, sampled.token, finish)
            opening = b""
            if sampled.last:
                data += answer.closing(usage_object(tokens.prompt, tokens.count, tokens.cached))
            await response.write(data)
        await response.write_eof()
        return response


class _MeasuredTokens:
    """Iterates over a generation's tokens, measures their latency, and injects `die_mid_stream`."""

    def __init__(
        self,
        stream: TokenStream,
        metrics: EngineMetrics,
        http: web.Request,
        *,
        arrived_s: float,
        finish_reason: str,
        die_after: int | None,
    ) -> None:
        self.rank = stream.rank
        self.prompt = stream.request.prompt_tokens
        self.count = 0
        self._stream = stream
        self._finish_reason = finish_reason
        self._metrics = metrics
        self._arrived_s = arrived_s
        self._previous_s = arrived_s
        self._http = http
        self._die_after = die_after
        self._ended = False

    @property
    def cached(self) -> int:
        """Number of prompt tokens that were cached; known from the first token on."""
        return self._stream.request.cached_tokens or 0

    def __aiter__(self) -> "_MeasuredTokens":
        return self

    async def __anext__(self) -> Sampled:
        if self._ended:
            raise StopAsyncIteration
        if self._die_after is not None and self.count >= self._die_after:
            await _drop_connection(self._http)
        sampled = await self._stream.next()
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


def _returned_prompt(generation: Generation) -> list[int] | None:
    return generation.prompt.tolist() if generation.return_token_ids else None


async def _drop_connection(http: web.Request) -> web.StreamResponse:
    """Close the client's connection as a dying process does; bytes already written are sent."""
    if http.transport is not None:
        http.transport.close()
    return await _until_cancelled()


async def _until_cancelled() -> web.StreamResponse:
    """Wait until the server cancels the handler because the connection is gone."""
    return await asyncio.get_running_loop().create_future()
