"""The native reader of prompts against the Python path: equal, or left to Python; never another result."""

import datetime as dt
import functools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers

from kvatlas_frontend.api.body import (
    ChatPrompt,
    OpaquePrompt,
    ParsedBody,
    TextPrompt,
    TokenPrompt,
    parse_body,
)
from kvatlas_frontend.api.errors import RefusedError
from kvatlas_frontend.tokens.chat_template import ChatTemplate, RenderError
from kvatlas_frontend.tokens.encoder import ReferenceEncoder, first_difference
from kvatlas_frontend.tokens.native_template import native_renderer
from kvatlas_frontend.tokens.template_tree import template_tree
from kvatlas_hashing import chunk_hashes
from kvatlas_native import PromptReader, ReadPrompt, TemplateRenderer, TextEncoder
from tests.property.frontend.chat_templates import TEMPLATES

SPECIAL_TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
NOON = dt.datetime(2026, 11, 21, 12, tzinfo=dt.UTC)
NOW = (2026, 11, 21, 12, 0, 0, 6)
BLOCK_SIZE = 4
# The strategies draw whole conversations, which takes a while on a busy machine.
drawn = settings(
    deadline=None,
    max_examples=40,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)

texts = st.one_of(
    st.text(max_size=12),
    st.sampled_from(
        [
            "",
            " lead and trail\n",
            "</think>x",
            "<think>\nq\n</think>\n\nok",
            'it\'s "q"',
            "\u2028x\x1c\x85",
            "TitLe case-x (y",
            "<tool_response>a</tool_response>",
            "a\r\nb\n\nc",
            "naïve 日本 🙂",
        ]
    ),
)
keys = st.sampled_from(
    ["a", "type", "items", "Name", "title", "keys", "text", "get", "_x", "", "é"]
)
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-5, 5)
    | st.sampled_from([2**31, 2**53 + 1, 2**63, -(2**63), 10**25])
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3),
    max_leaves=8,
)
schemas: st.SearchStrategy[dict[str, Any]] = st.recursive(
    st.fixed_dictionaries({"type": st.sampled_from(["string", "integer", "number"])}),
    lambda inner: (
        st.fixed_dictionaries({"type": st.just("array"), "items": inner})
        | st.fixed_dictionaries(
            {"type": st.just("object"), "properties": st.dictionaries(keys, inner, max_size=2)}
        )
    ),
    max_leaves=4,
)
tools: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {
        "type": st.just("function"),
        "function": st.fixed_dictionaries(
            {
                "name": st.sampled_from(["get_weather", "f"]),
                "parameters": st.fixed_dictionaries(
                    {
                        "type": st.just("object"),
                        "properties": st.dictionaries(keys, schemas, max_size=2),
                        "required": st.lists(keys, max_size=2),
                    }
                ),
            },
            optional={"description": texts},
        ),
    }
)
calls: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {
        "type": st.just("function"),
        "function": st.fixed_dictionaries(
            {
                "name": st.just("f"),
                "arguments": st.one_of(
                    values.map(json.dumps),
                    st.just(""),
                    st.just('{"a": "\\ud83d\\ude42", "a": 1}'),
                    st.just('{"a": "\\ud83d"}'),
                    st.dictionaries(keys, values, max_size=2),
                    values,
                ),
            }
        ),
    },
    optional={"id": st.sampled_from(["abcdefghi", "x"])},
)
parts = st.one_of(
    st.fixed_dictionaries({"type": st.just("text"), "text": texts}),
    texts,
    st.just({"type": "image_url", "image_url": {"url": "data:,"}}),
)
messages: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "system", "tool", "stop", "skip", "odd"])},
    optional={
        "content": st.one_of(texts, texts, st.none(), st.lists(parts, max_size=3), values),
        "tool_calls": st.one_of(st.none(), st.lists(calls, max_size=2)),
        "name": texts,
        "tool_call_id": st.just("abcdefghi"),
        "reasoning_content": st.one_of(texts, st.none()),
        "extra": values,
    },
)
alternating = st.lists(texts, min_size=1, max_size=6).map(
    lambda contents: [
        {"role": ("user", "assistant")[turn % 2], "content": content}
        for turn, content in enumerate(contents)
    ]
)
variables = st.dictionaries(
    st.sampled_from(
        [
            "extra",
            "controls",
            "enable_thinking",
            "date_string",
            "custom_tools",
            "tools_in_user_message",
            "index",
            "content",
            "role",
            "ns",
            "messages",
            "tools",
            "range",
        ]
    ),
    values,
    max_size=3,
)
conversations: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {"messages": st.one_of(alternating, st.lists(messages, min_size=1, max_size=5))},
    optional={
        "tools": st.one_of(st.none(), st.lists(tools, max_size=2), values),
        "documents": st.lists(st.fixed_dictionaries({"title": texts, "text": texts}), max_size=2),
        "add_generation_prompt": st.booleans(),
        "chat_template_kwargs": st.one_of(st.none(), variables),
        "chat_template": st.none(),
        "continue_final_message": st.sampled_from([None, False, True]),
        "add_special_tokens": st.booleans(),
        "truncate_prompt_tokens": st.integers(-1, 20),
        "model": st.sampled_from(["base", "adapter", None]),
        "cache_salt": st.sampled_from(["", "s", None]),
        "stream": st.sampled_from([True, False, None, 0, 2]),
    },
)
completions: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {
        "prompt": st.one_of(
            texts,
            st.lists(st.integers(0, 2**32 - 1), max_size=20),
            st.lists(st.lists(st.integers(-1, 300), max_size=9), max_size=2),
            st.lists(texts, max_size=2),
            st.lists(values, max_size=3),
            values,
        )
    },
    optional={
        "prompt_embeds": texts,
        "add_special_tokens": st.sampled_from([True, False, None]),
        "truncate_prompt_tokens": st.one_of(st.integers(-1, 20), values),
        "model": st.one_of(st.sampled_from(["base", "adapter"]), values),
        "cache_salt": st.one_of(texts, values),
        "stream": values,
        "temperature": values,
    },
)


@functools.cache
def both(name: str) -> tuple[ChatTemplate, TemplateRenderer]:
    template = ChatTemplate(TEMPLATES[name], SPECIAL_TOKENS, now=lambda: NOON)
    renderer = TemplateRenderer(
        template_tree(template.tree),
        special_tokens=SPECIAL_TOKENS,
        content_is_list=template.content_is_list,
    )
    return template, renderer


def by_python(template: ChatTemplate, body: bytes) -> tuple[str, bool] | None:
    prompt = parse_body("chat", body).prompt
    assert isinstance(prompt, ChatPrompt)
    try:
        return template.render(prompt.messages, prompt.options)
    except RenderError:
        return None


@pytest.mark.parametrize("name", TEMPLATES)
@drawn
@given(conversation=conversations, ascii_only=st.booleans())
def test_a_conversation_is_rendered_alike_or_left(
    name: str, conversation: dict[str, Any], ascii_only: bool
) -> None:
    template, renderer = both(name)
    body = json.dumps(conversation, ensure_ascii=ascii_only).encode("utf-8", "replace")
    ours = renderer.render(body, NOW)
    if ours is not None:
        assert ours == by_python(template, body)


@pytest.mark.parametrize("name", TEMPLATES)
@drawn
@given(conversation=alternating)
def test_a_plain_conversation_is_never_left(name: str, conversation: list[dict[str, Any]]) -> None:
    template, renderer = both(name)
    body = json.dumps({"messages": conversation}).encode()
    assert renderer.render(body, NOW) == by_python(template, body)


@pytest.mark.parametrize("name", TEMPLATES)
def test_the_self_check_accepts_each_template(name: str) -> None:
    assert native_renderer(both(name)[0]) is not None


@pytest.mark.parametrize(
    "source",
    [
        "{% for a in messages recursive %}{{ loop(a.b) }}{% endfor %}",
        "{{ messages | pprint }}",
        "{{ messages | map('length') | unique | list }}",
    ],
)
def test_a_template_that_only_python_renders_is_left_to_it(source: str) -> None:
    assert native_renderer(ChatTemplate(source, {}, now=lambda: NOON)) is None


ADDED_TOKENS = ["<s>", "<|im_start|>", "<|im_end|>"]


@functools.cache
def tokenizer_file(directory: Path) -> Path:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=ADDED_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(["the quick brown fox jumps over the lazy dog"] * 50, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 0)]
    )
    file = directory / "tokenizer.json"
    tokenizer.save(str(file))
    return file


class Paths:
    """The native reader, and the Python path that it must equal."""

    def __init__(self, file: Path) -> None:
        self.encoder = ReferenceEncoder(file)
        self.template, renderer = both("qwen-tools")
        native = TextEncoder(file)
        assert first_difference(_Named(native), self.encoder, ADDED_TOKENS) is None
        # With a cache, so that every example also meets the segments of those before it.
        self.reader = PromptReader(
            encoder=native,
            template=renderer,
            block_size=BLOCK_SIZE,
            wanted="hashes",
            threads=1,
            cache_bytes_max=1 << 16,
            tenant_header=None,
        )
        self.reader.set_adapters({"adapter": "adapter"})
        self.fields_alone = PromptReader(
            encoder=None,
            template=None,
            block_size=BLOCK_SIZE,
            wanted="fields",
            threads=1,
            cache_bytes_max=0,
            tenant_header=None,
        )

    def check(self, path: str, body: bytes) -> ReadPrompt | str:
        read = self.reader.read(path, body)
        few = self.fields_alone.read(path, body)
        route = "chat" if "chat" in path else "completions"
        if isinstance(few, ReadPrompt):
            self._same_fields(few, parse_body(route, body))
        if isinstance(read, str):
            return read
        assert isinstance(few, ReadPrompt)
        parsed = parse_body(route, body)
        self._same_fields(read, parsed)
        expected = self._tokens(parsed)
        assert expected is not None
        ids, whole = expected
        assert read.tokens is not None
        assert read.chunk_hashes is not None
        assert read.tokens.tolist() == ids
        assert read.whole == whole
        lora_name = "adapter" if parsed.model == "adapter" else None
        salt = parsed.cache_salt or None
        hashes = chunk_hashes(
            np.array(ids, dtype=np.uint32), BLOCK_SIZE, lora_name=lora_name, cache_salt=salt
        )
        usable = max(0, (len(ids) - 1) // BLOCK_SIZE) if whole else len(hashes)
        assert read.chunk_hashes.tolist() == hashes[:usable].tolist()
        return read

    def _same_fields(self, read: ReadPrompt, parsed: ParsedBody) -> None:
        assert (read.model, read.stream, read.cache_salt, read.batch) == (
            parsed.model,
            parsed.stream,
            parsed.cache_salt,
            parsed.batch,
        )

    def _tokens(self, parsed: ParsedBody) -> tuple[list[int], bool] | None:
        match parsed.prompt:
            case TokenPrompt(ids, keep):
                return ids.tolist()[-keep if keep else None :], True
            case TextPrompt(text, special, keep):
                ids = self.encoder.encode(text, add_special_tokens=special).tolist()
                return ids[-keep if keep else None :], True
            case ChatPrompt():
                prompt = parsed.prompt
                if prompt.options.get("continue_final_message"):
                    return None
                text, whole = self.template.render(prompt.messages, prompt.options)
                special = prompt.add_special_tokens
                ids = self.encoder.encode(text, add_special_tokens=special).tolist()
                if not whole:
                    return ids[:-1], False
                return ids[-prompt.keep_last if prompt.keep_last else None :], True
            case OpaquePrompt():
                return None


class _Named:
    """A native encoder as the self-check takes one."""

    name = "fastokens"
    inline_chars_max = 0

    def __init__(self, native: TextEncoder) -> None:
        self.encode = native.encode


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> Paths:
    return Paths(tokenizer_file(tmp_path_factory.mktemp("model")))


@drawn
@given(body=completions, ascii_only=st.booleans())
def test_a_completion_is_read_alike_or_left(
    paths: Paths, body: dict[str, Any], ascii_only: bool
) -> None:
    encoded = json.dumps(body, ensure_ascii=ascii_only).encode("utf-8", "replace")
    paths.check("/v1/completions", encoded)


@drawn
@given(body=conversations)
def test_a_conversation_is_read_alike_or_left(paths: Paths, body: dict[str, Any]) -> None:
    paths.check("/v1/chat/completions", json.dumps(body).encode())


turns = st.builds(str.__mul__, texts, st.integers(0, 60))


@drawn
@given(contents=st.lists(turns, min_size=1, max_size=6), special=st.booleans())
def test_a_conversation_that_grows_is_read_alike(
    paths: Paths, contents: list[str], special: bool
) -> None:
    """The tokens of earlier turns come from the cache."""
    messages: list[dict[str, str]] = []
    for number, content in enumerate(contents):
        role = "assistant" if number % 2 else "user"
        messages.append({"role": role, "content": f"{content}<|im_end|>" if special else content})
        body = {"messages": messages, "add_special_tokens": special}
        encoded = json.dumps(body).encode("utf-8", "replace")
        assert isinstance(paths.check("/v1/chat/completions", encoded), ReadPrompt)


def test_only_the_new_turn_of_a_conversation_is_encoded(paths: Paths) -> None:
    first = [{"role": "user", "content": "a question " * 40}]
    second = [*first, {"role": "assistant", "content": "an answer " * 40}]

    def read(messages: list[dict[str, str]], tenant: bytes, salt: str | None = None) -> int:
        before = paths.reader.cache_stats()
        body = json.dumps({"messages": messages, "cache_salt": salt}).encode()
        read = paths.reader.read("/v1/chat/completions", body, tenant=tenant)
        assert isinstance(read, ReadPrompt)
        after = paths.reader.cache_stats()
        assert before is not None
        assert after is not None
        return after.hit_bytes - before.hit_bytes

    assert read(first, b"one") == 0
    assert read(second, b"one") >= len("a question " * 40)
    assert read(second, b"two") == 0
    assert read(second, b"one", salt="s") == 0


@drawn
@given(data=st.data(), body=st.one_of(completions, conversations))
def test_a_damaged_body_is_never_read_where_python_refuses_it(
    paths: Paths, data: st.DataObject, body: dict[str, Any]
) -> None:
    """Bytes replaced, removed and repeated: mostly no JSON, sometimes other JSON."""
    encoded = bytearray(json.dumps(body, ensure_ascii=False).encode("utf-8", "replace"))
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(encoded) - 1))
        piece = data.draw(
            st.sampled_from(
                [b"", b'"', b",", b"}", b"[", b"0", b"-0", b"1e9", b"1e400", b"\\ud800", b"\xff",
                 b"\x00", b"null", b"NaN", b"\\u0041", b'"a":1,', b" ", b"\xef\xbb\xbf", b"."]
            )
        )  # fmt: skip
        encoded[place : place + data.draw(st.integers(0, 2))] = piece
    path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
    try:
        paths.check(path, bytes(encoded))
    except RefusedError as error:
        pytest.fail(f"read, but Python refuses it: {error}")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", b'{"prompt": "a", "prompt": "b", "model": "x", "model": "adapter"}'),
        ("/v1/completions", b'{"prompt": [1, 2, 3], "stream": 1, "x": [[[{"y": -0.0}]]]}'),
        ("/v1/completions", b' {"prompt":["a \\ud83d\\ude42", 5]} \n'),
        ("/v1/completions", b'{"prompt": "' + "naïve 日本 ".encode() * 400 + b'"}'),
        (
            "/v1/chat/completions",
            b'{"messages":[{"role":"user","content":"a","content":"b","x":1.5e3}],"n":1e300}',
        ),
    ],
)
def test_a_usual_body_is_not_left(paths: Paths, path: str, body: bytes) -> None:
    assert isinstance(paths.check(path, body), ReadPrompt)


@pytest.mark.parametrize(
    ("path", "body", "left"),
    [
        ("/v1/completions", b"", "body"),
        ("/v1/completions", b"{}", "body"),
        ("/v1/completions", b'{"prompt": ""}', "body"),
        ("/v1/completions", b'{"prompt": []}', "body"),
        ("/v1/completions", b'{"prompt": [1.0]}', "body"),
        ("/v1/completions", b'{"prompt": [true]}', "body"),
        ("/v1/completions", b'{"prompt": [-1]}', "body"),
        ("/v1/completions", b'{"prompt_embeds": "AAAA"}', "body"),
        ("/v1/completions", b'{"prompt": "a", "x": "\\ud800"}', "body"),
        ("/v1/completions", b'{"prompt": "a", "x": ' + b"[" * 2000 + b"]" * 2000 + b"}", "body"),
        ("/v1/completions", b'{"prompt": "a", "model": 5}', "body"),
        ("/v1/chat/completions", b'{"messages": []}', "body"),
        ("/v1/chat/completions", b'{"messages": [{"role": "user", "x": 1e20}]}', "body"),
        (
            "/v1/chat/completions",
            b'{"messages": [{"role": "user", "content": "a"}], "chat_template": "x"}',
            "tokenizer",
        ),
        (
            "/v1/chat/completions",
            b'{"messages": [{"role": "user", "content": "a"}], "continue_final_message": true}',
            "tokenizer",
        ),
        ("/v1/chat/completions", b'{"messages": [{"role": "user", "content": 5}]}', "template"),
    ],
)
def test_an_unusual_body_is_left_with_the_reason(
    paths: Paths, path: str, body: bytes, left: str
) -> None:
    assert paths.check(path, body) == left


def printed(value: float) -> tuple[str, bool] | None:
    source = "{{ extra }} {{ extra | tojson }} {{ [extra] }}"
    template = ChatTemplate(source, {}, now=lambda: NOON)
    renderer = TemplateRenderer(
        template_tree(template.tree), special_tokens={}, content_is_list=False
    )
    body = {"messages": [{"role": "user"}], "chat_template_kwargs": {"extra": value}}
    return renderer.render(json.dumps(body).encode(), NOW)


@drawn
@given(value=st.floats(allow_nan=False, allow_infinity=False))
def test_a_float_is_printed_as_python_prints_it_or_left(value: float) -> None:
    assert printed(value) in (None, (f"{value} {json.dumps(value)} [{value}]", True))


@drawn
@given(value=st.decimals("0.001", 10_000, places=6).map(float))
def test_a_common_float_is_not_left(value: float) -> None:
    assert printed(value) == (f"{value} {json.dumps(value)} [{value}]", True)
