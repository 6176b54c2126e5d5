"""Turns a request's body into a generation: prompt tokens, hash key, length of the output."""

from array import array
from dataclasses import dataclass
from typing import Literal

import msgspec

from kvatlas_mocker.bodies import ApiError, ChatBody, CompletionBody, GenerationBody, TokenizeBody
from kvatlas_mocker.engine import Engine
from kvatlas_mocker.hashing import HashKey
from kvatlas_mocker.tokenizer import TOKEN_MAX

_COMPLETION_TOKENS = 16  # vLLM's default of max_tokens for completions
_tokens_decoder = msgspec.json.Decoder(list[int])
_text_decoder = msgspec.json.Decoder(str)


@dataclass(frozen=True, slots=True)
class Generation:
    """A checked request for output."""

    model: str
    prompt: "array[int]"
    key: HashKey
    output_max: int
    finish_reason: Literal["length", "stop"]
    stream: bool
    include_usage: bool
    return_token_ids: bool


async def read_completion(engine: Engine, body: CompletionBody) -> Generation:
    """Check a completion.

    Raises:
        ApiError: 400 or 404.
    """
    if body.echo:
        raise ApiError("echo is not supported by the mock engine", param="echo")
    prompt = await _completion_prompt(engine, body)
    asked = _COMPLETION_TOKENS if body.max_tokens is None else body.max_tokens
    return _generation(engine, body, prompt, asked)


async def read_chat(engine: Engine, body: ChatBody) -> Generation:
    """Check a chat completion.

    Raises:
        ApiError: 400 or 404.
    """
    text = _render(engine, body)
    prompt = await engine.tokenizer.encode(text, add_special_tokens=body.add_special_tokens)
    asked = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    return _generation(engine, body, prompt, asked)


async def tokenize(engine: Engine, body: TokenizeBody) -> "array[int]":
    """The tokens of a completion's prompt or of a chat's messages.

    Raises:
        ApiError: 400 or 404.
    """
    engine.find(body.model)
    if body.messages is not None:
        text, special = _render(engine, body), False
    elif body.prompt is not None:
        text, special = body.prompt, True
    else:
        raise ApiError("either prompt or messages is needed")
    if body.add_special_tokens is not None:
        special = body.add_special_tokens
    return await engine.tokenizer.encode(text, add_special_tokens=special)


async def _completion_prompt(engine: Engine, body: CompletionBody) -> "array[int]":
    raw = bytes(body.prompt).strip()
    if raw.startswith(b'"'):
        text = _decoded_text(raw)
        return await engine.tokenizer.encode(text, add_special_tokens=body.add_special_tokens)
    if not raw.startswith(b"["):
        raise ApiError("a prompt is needed: a text or a list of token ids", param="prompt")
    if raw[1:].lstrip()[:1] in (b"[", b'"'):
        raise ApiError("several prompts in one request are not supported", param="prompt")
    try:
        return array("I", _tokens_decoder.decode(raw))
    except msgspec.DecodeError as error:
        raise ApiError(f"prompt: {error}", param="prompt") from None
    except OverflowError:
        raise ApiError(f"Token id is out of vocabulary [0, {TOKEN_MAX}]", param="prompt") from None


def _decoded_text(raw: bytes) -> str:
    try:
        return _text_decoder.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ApiError(f"prompt: {error}", param="prompt") from None


def _render(engine: Engine, body: ChatBody | TokenizeBody) -> str:
    try:
        return engine.template.render(
            body.messages or [],
            add_generation_prompt=body.add_generation_prompt,
            tools=body.tools,
            arguments=body.chat_template_kwargs,
        )
    except ValueError as error:
        raise ApiError(str(error), param="messages") from None


def _generation(
    engine: Engine, body: GenerationBody, prompt: "array[int]", asked: int | None
) -> Generation:
    served = engine.find(body.model)
    if body.n not in (None, 1):
        raise ApiError("n > 1 is not supported by the mock engine", param="n")
    output_max, natural = _output_max(engine, body, len(prompt), asked)
    options = body.stream_options
    return Generation(
        model=served.name,
        prompt=prompt,
        key=served.hash_key(body.cache_salt),
        output_max=output_max,
        finish_reason="stop" if natural else "length",
        stream=body.stream,
        include_usage=options is not None and options.include_usage,
        return_token_ids=bool(body.return_token_ids),
    )


def _output_max(
    engine: Engine, body: GenerationBody, prompt_tokens: int, asked: int | None
) -> tuple[int, bool]:
    """Number of tokens of the answer, and whether the model ends it by itself."""
    context = engine.settings.context_tokens
    room = context - prompt_tokens
    if not prompt_tokens:
        raise ApiError("The decoder prompt cannot be empty", param="prompt")
    if asked is not None and asked < 1:
        raise ApiError(f"max_tokens must be at least 1, got {asked}.", param="max_tokens")
    if room < 1 or (asked is not None and asked > room):
        raise ApiError(
            f"This model's maximum context length is {context} tokens. However, you requested "
            f"{asked or 1} output tokens and your prompt contains {prompt_tokens} input tokens. "
            "Please reduce the length of the input prompt or the number of requested output "
            "tokens.",
            param="input_tokens",
        )
    if asked is not None:
        return asked, False
    natural_end = engine.settings.default_output_tokens
    if body.ignore_eos or natural_end > room:
        return room, False
    return natural_end, True
