"""Turns a request's body into a generation: prompts, hash key, and what each choice will say."""

import zlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, TypeAlias, cast

import msgspec

from kvatlas_mocker.bodies import ApiError, ChatBody, CompletionBody, GenerationBody, TokenizeBody
from kvatlas_mocker.engine import Engine
from kvatlas_mocker.hashing import HashKey
from kvatlas_mocker.scripted import Script, any_object, instance, write_script
from kvatlas_mocker.tokenizer import TOKEN_MAX

FinishReason: TypeAlias = Literal["length", "stop", "tool_calls"]

_COMPLETION_TOKENS = 16  # vLLM's default of max_tokens for completions
_CHOICES_MAX = 128
_LOGPROBS_MAX = 20  # vLLM's default of --max-logprobs
_SPREAD: Final = 0x9E3779B9  # makes the seeds of one prompt's choices differ
_any_decoder = msgspec.json.Decoder()


@dataclass(frozen=True, slots=True)
class Output:
    """The plan of one choice: its prompt, and how it goes on."""

    index: int
    prompt: "array[int]"
    seed: int
    tokens_max: int
    finish_reason: FinishReason
    script: Script | None = None  # None: pseudorandom words


@dataclass(frozen=True, slots=True)
class Generation:
    """A checked request for output."""

    model: str
    key: HashKey
    prompts: "Sequence[array[int]]"
    outputs: Sequence[Output]
    stream: bool
    include_usage: bool
    return_token_ids: bool
    logprobs: int | None = None  # number of alternatives for each token; None: not asked for
    echo: bool = False
    is_silent: bool = False  # max_tokens was 0: the prompt is computed, and nothing is said

    @property
    def prompt_tokens(self) -> int:
        """Tokens of all prompts; several answers to one prompt count it once."""
        return sum(len(prompt) for prompt in self.prompts)


async def read_completion(engine: Engine, body: CompletionBody) -> Generation:
    """Check a completion.

    Raises:
        ApiError: 400 or 404.
    """
    prompts = await _completion_prompts(engine, body)
    _check_logprobs(body.logprobs, "logprobs")
    is_silent = body.echo and body.max_tokens == 0
    asked = _COMPLETION_TOKENS if body.max_tokens is None else body.max_tokens
    generation = _generation(engine, body, prompts, 1 if is_silent else asked)
    return replace(generation, logprobs=body.logprobs, echo=body.echo, is_silent=is_silent)


async def read_chat(engine: Engine, body: ChatBody) -> Generation:
    """Check a chat completion.

    Raises:
        ApiError: 400 or 404.
    """
    top = body.top_logprobs or 0
    _check_logprobs(top, "top_logprobs")
    if top and not body.logprobs:
        raise ApiError("when using `top_logprobs`, `logprobs` must be set to true.")
    text = _render(engine, body)
    prompt = await engine.tokenizer.encode(text, add_special_tokens=body.add_special_tokens)
    asked = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    generation = _generation(engine, body, [prompt], asked)
    room = engine.settings.context_tokens - len(prompt)
    outputs = [
        await _scripted(engine, body, output, room if asked is None else asked)
        for output in generation.outputs
    ]
    return replace(generation, outputs=outputs, logprobs=top if body.logprobs else None)


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


async def _completion_prompts(engine: Engine, body: CompletionBody) -> list["array[int]"]:
    """All prompts: a text, token ids, or a list of either."""
    given = _prompt_value(bytes(body.prompt))
    if isinstance(given, str) or not isinstance(given[0], (str, list)):
        return [await _prompt(engine, body, given)]
    return [await _prompt(engine, body, each) for each in given]


def _prompt_value(raw: bytes) -> str | list[Any]:
    try:
        given = _any_decoder.decode(raw) if raw else None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ApiError(f"prompt: {error}", param="prompt") from None
    if isinstance(given, str):
        return given
    if not isinstance(given, list):
        raise ApiError("a prompt is needed: a text or a list of token ids", param="prompt")
    if not given:
        raise ApiError("The decoder prompt cannot be empty", param="prompt")
    return cast("list[Any]", given)


async def _prompt(engine: Engine, body: CompletionBody, given: object) -> "array[int]":
    if isinstance(given, str):
        return await engine.tokenizer.encode(given, add_special_tokens=body.add_special_tokens)
    if not isinstance(given, list):
        raise ApiError("prompt: texts and token ids cannot be mixed", param="prompt")
    try:
        return array("I", cast("list[int]", given))
    except TypeError as error:
        raise ApiError(f"prompt: {error}", param="prompt") from None
    except OverflowError:
        raise ApiError(f"Token id is out of vocabulary [0, {TOKEN_MAX}]", param="prompt") from None


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
    engine: Engine, body: GenerationBody, prompts: list["array[int]"], asked: int | None
) -> Generation:
    served = engine.find(body.model)
    choices = 1 if body.n is None else body.n
    if not 1 <= choices <= _CHOICES_MAX:
        raise ApiError(f"n must be 1 to {_CHOICES_MAX}, got {choices}.", param="n")
    outputs: list[Output] = []
    for prompt in prompts:
        tokens_max, natural = _output_max(engine, body, len(prompt), asked)
        for choice in range(choices):
            seed = _seed(prompt, body.seed, choice)
            finish_reason = "stop" if natural else "length"
            outputs.append(Output(len(outputs), prompt, seed, tokens_max, finish_reason))
    options = body.stream_options
    return Generation(
        model=served.name,
        key=served.hash_key(body.cache_salt),
        prompts=prompts,
        outputs=outputs,
        stream=body.stream,
        include_usage=options is not None and options.include_usage,
        return_token_ids=bool(body.return_token_ids),
    )


def _seed(prompt: "array[int]", given: int | None, choice: int) -> int:
    """Depends on the prompt; for other choices and with a `seed` of the request, on these too."""
    base = zlib.crc32(prompt)
    if given is not None:
        base ^= zlib.crc32(str(given).encode())
    return (base + choice * _SPREAD) & 0xFFFF_FFFF


async def _scripted(engine: Engine, body: ChatBody, output: Output, limit: int) -> Output:
    """The output with its script, if the request asks for a tool call or for JSON."""
    function = _called(body, output.seed)
    if function is not None:
        schema = function.get("parameters") or {"type": "object"}
        value, tool = instance(schema, output.seed), str(function["name"])
        reason: FinishReason = "stop" if isinstance(body.tool_choice, dict) else "tool_calls"
    else:
        value, tool, reason = _formatted(body.response_format, output.seed), None, "stop"
        if value is _NOTHING:
            return output
    script = await write_script(engine.tokenizer, value, tool=tool)
    count = len(script.tokens)
    return replace(
        output,
        script=script,
        tokens_max=min(count, limit),
        finish_reason=reason if count <= limit else "length",
    )


_NOTHING: Final = object()


def _formatted(asked: dict[str, Any] | None, seed: int) -> object:
    """The value that `response_format` asks for; `_NOTHING`: plain text."""
    kind = "text" if asked is None else asked.get("type")
    if asked is None or kind == "text":
        return _NOTHING
    if kind == "json_object":
        return any_object(seed)
    if kind != "json_schema" or not isinstance(asked.get("json_schema"), dict):
        raise ApiError(f"response_format: {kind!r} is not supported", param="response_format")
    schema = asked["json_schema"].get("schema")
    if not isinstance(schema, dict):
        raise ApiError("response_format: a schema is needed", param="response_format")
    return instance(cast("dict[str, Any]", schema), seed)


def _called(body: ChatBody, seed: int) -> dict[str, Any] | None:
    """The function to call. Left to decide, the model answers a user's message with a call."""
    functions = [_function(tool) for tool in body.tools or ()]
    choice = body.tool_choice
    if choice == "none":
        return None
    if not functions:
        if choice not in (None, "auto"):
            raise ApiError("When using `tool_choice`, `tools` must be set.", param="tool_choice")
        return None
    if isinstance(choice, dict):
        named = cast("dict[str, Any]", choice.get("function") or {})
        for function in functions:
            if function["name"] == named.get("name"):
                return function
        raise ApiError("The tool in `tool_choice` is not in `tools`.", param="tool_choice")
    if choice not in (None, "auto", "required"):
        raise ApiError(f"tool_choice: {choice!r} is not supported", param="tool_choice")
    messages = body.messages
    if choice != "required" and (not messages or messages[-1].get("role") != "user"):
        return None
    return functions[seed % len(functions)]


def _function(tool: dict[str, Any]) -> dict[str, Any]:
    function = tool.get("function")
    if not isinstance(function, dict) or not isinstance(
        cast("dict[str, Any]", function).get("name"), str
    ):
        raise ApiError("every tool needs a function with a name", param="tools")
    return cast("dict[str, Any]", function)


def _check_logprobs(count: int | None, param: str) -> None:
    if count is not None and not 0 <= count <= _LOGPROBS_MAX:
        raise ApiError(f"{param} must be 0 to {_LOGPROBS_MAX}, got {count}.", param=param)


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
