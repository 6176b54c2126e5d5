"""The routes that generate: faults, admission, streaming and disconnected clients."""

import asyncio
import time
from array import array
from collections.abc import AsyncGenerator, Awaitable, Callable

from aiohttp import web

from kvatlas_mocker.answers import Answer, ChatAnswer, CompletionAnswer, Said, Usage
from kvatlas_mocker.bodies import ApiError, ChatBody, CompletionBody, parse
from kvatlas_mocker.engine import Engine
from kvatlas_mocker.faults import Switch
from kvatlas_mocker.generation import Generation, Output, read_chat, read_completion
from kvatlas_mocker.metrics import EngineMetrics
from kvatlas_mocker.rank import EngineRestartedError, Rank, TokenStream
from kvatlas_mocker.scheduler import Sampled

RANK_HEADER = "x-mock-engine-rank"
"""Names the rank that served an answer, for tests; vLLM has no such header."""

_STREAM_HEADERS = {"Content-Type": "text/event-stream; charset=utf-8"}
_JSON = "application/json"
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class GenerationHandlers:
    """Serves the routes that generate.

    The server cancels a handler when its client disconnects; the request is then aborted and its
    blocks freed.
    """

    def __init__(self, engine: Engine, metrics: EngineMetrics) -> None:
        self._engine = engine
        self._metrics = metrics

    async def completions(self, http: web.Request) -> web.StreamResponse:
        """`POST /v1/completions`."""
        fault = await self.begin(http)
        generation = await read_completion(self._engine, parse(await http.read(), CompletionBody))
        answer = CompletionAnswer(generation, self._engine.tokenizer)
        return await self.generate(http, generation, answer, fault)

    async def chat(self, http: web.Request) -> web.StreamResponse:
        """`POST /v1/chat/completions`."""
        fault = await self.begin(http)
        generation = await read_chat(self._engine, parse(await http.read(), ChatBody))
        answer = ChatAnswer(generation, self._engine.tokenizer)
        return await self.generate(http, generation, answer, fault)

    async def begin(self, http: web.Request) -> Switch | None:
        """Let an armed fault hit; returned is one that hits later.

        Raises:
            ApiError: 500, such a fault.
        """
        fault = self._engine.faults.for_request()
        if fault == "error_500":
            raise ApiError("Internal server error", status=500, kind="InternalServerError")
        if fault == "die_before_first_byte":
            await _drop_connection(http)
        if fault == "hang":
            await _until_cancelled()
        return fault

    async def generate(
        self, http: web.Request, generation: Generation, answer: Answer, fault: Switch | None
    ) -> web.StreamResponse:
        """Generate and answer.

        Raises:
            ApiError: 400, there is no such rank; 503, the queue is full.
        """
        arrived_s = time.monotonic()
        rank = self._engine.rank(http.headers.get("X-data-parallel-rank"))
        streams: list[TokenStream] = []
        try:
            for output in generation.outputs:
                streams.append(self._submit(rank, generation, output))  # noqa: PERF401 - a full queue must leave those before it in the list
            measured = [
                _MeasuredTokens(stream, output, self._metrics, arrived_s=arrived_s)
                for stream, output in zip(streams, generation.outputs, strict=True)
            ]
            die_after = self._engine.faults.after_tokens if fault == "die_mid_stream" else None
            said = self._said(http, measured, die_after)
            headers = {RANK_HEADER: str(rank.index)}
            if generation.stream:
                return await self._stream(
                    http, answer, said, _Totals(generation, measured), headers
                )
            choices: list[list[Said]] = [[] for _ in generation.outputs]
            async for each in said:
                choices[each.output.index].append(each)
            usage = _Totals(generation, measured).usage()
            body = answer.whole(choices, usage)
            return web.Response(body=body, content_type=_JSON, headers=headers)
        except EngineRestartedError:
            return await _drop_connection(http)
        finally:
            for stream in streams:
                rank.abort(stream)

    def _submit(self, rank: Rank, generation: Generation, output: Output) -> TokenStream:
        return self._engine.submit(
            rank,
            array("I", output.prompt),
            generation.key,
            output_max=output.tokens_max,
            output=output.seed if output.script is None else output.script.tokens,
        )

    async def _said(
        self, http: web.Request, choices: list["_MeasuredTokens"], die_after: int | None
    ) -> AsyncGenerator[Said]:
        """The tokens of all choices in turn, as one after the other is generated."""
        piece = self._engine.tokenizer.piece
        count = 0
        open_choices = list(choices)
        while open_choices:
            for tokens in list(open_choices):
                if die_after is not None and count >= die_after:
                    await _drop_connection(http)
                sampled = await tokens.next()
                output, at = tokens.output, tokens.count - 1
                yield Said(
                    output,
                    piece(sampled.token) if output.script is None else output.script.pieces[at],
                    sampled.token,
                    is_first=at == 0,
                    finish_reason=output.finish_reason if sampled.last else None,
                )
                count += 1
                if sampled.last:
                    open_choices.remove(tokens)

    async def _stream(
        self,
        http: web.Request,
        answer: Answer,
        said: AsyncGenerator[Said],
        totals: "_Totals",
        headers: dict[str, str],
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers=_STREAM_HEADERS | headers)
        await response.prepare(http)
        opening = answer.opening()
        async for each in said:
            data = opening + answer.chunk(each)
            opening = b""
            if totals.is_complete:
                data += answer.closing(totals.usage())
            await response.write(data)
        await response.write_eof()
        return response


class _MeasuredTokens:
    """The tokens of one choice; measures their latency."""

    def __init__(
        self, stream: TokenStream, output: Output, metrics: EngineMetrics, *, arrived_s: float
    ) -> None:
        self.output = output
        self.count = 0
        self.is_ended = False
        self._stream = stream
        self._metrics = metrics
        self._arrived_s = arrived_s
        self._previous_s = arrived_s

    @property
    def cached(self) -> int:
        """Number of prompt tokens that were cached; known from the first token on."""
        return self._stream.request.cached_tokens or 0

    async def next(self) -> Sampled:
        """The next token.

        Raises:
            EngineRestartedError: there is none.
        """
        sampled = await self._stream.next()
        rank = self._stream.rank
        now_s = time.monotonic()
        if self.count:
            self._metrics.next_token(rank, now_s - self._previous_s)
        else:
            self._metrics.first_token(rank, now_s - self._arrived_s)
        self._previous_s = now_s
        self.count += 1
        if sampled.last:
            self.is_ended = True
            self._metrics.finished(rank, now_s - self._arrived_s, self.output.finish_reason)
        return sampled


class _Totals:
    """The usage of a request, once all of its choices are complete."""

    def __init__(self, generation: Generation, choices: list[_MeasuredTokens]) -> None:
        self._generation = generation
        self._choices = choices

    @property
    def is_complete(self) -> bool:
        return all(choice.is_ended for choice in self._choices)

    def usage(self) -> Usage:
        """Each prompt counts once, as the first of its choices found it in the cache."""
        each = len(self._choices) // len(self._generation.prompts)
        said = 0 if self._generation.is_silent else sum(choice.count for choice in self._choices)
        cached = sum(choice.cached for choice in self._choices[::each])
        return Usage(self._generation.prompt_tokens, said, cached)


async def _drop_connection(http: web.Request) -> web.StreamResponse:
    """Close the client's connection as a dying process does; bytes already written are sent."""
    if http.transport is not None:
        http.transport.close()
    return await _until_cancelled()


async def _until_cancelled() -> web.StreamResponse:
    """Wait until the server cancels the handler because the connection is gone."""
    return await asyncio.get_running_loop().create_future()
