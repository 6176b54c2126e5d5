"""The prompts of the benchmark: conversations of a known number of tokens, as request bodies.

A body has marks, runs of 16 `@`, which the load generator replaces by a new word in each request
(`loadtest/rust/src/http/requests.rs`). A mark at the beginning makes the whole text new; a mark in
the last message leaves what came before it as it was.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from kvatlas_hashing import chunk_hashes, sequence_hashes
from kvatlas_loadtest.bench.cell import BLOCK_SIZE, MODEL
from kvatlas_loadtest.bench.texts import deepseek_folder, make_texts

TURNS = 10
_MARK = "@" * 16
_MARK_TOKENS = 12  # about: each word is 16 random hexadecimal digits
_BIG_BODY_BYTES = 31_000_000
_BOS, _USER, _ASSISTANT = "<｜begin▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>"  # noqa: RUF001 - the model's tokens
_EOS = "<｜end▁of▁sentence｜>"  # noqa: RUF001 - the model's tokens
_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message.role == 'user' %}" + _USER + "{{ message.content }}"
    "{% elif message.role == 'assistant' %}" + _ASSISTANT + "{{ message.content }}" + _EOS + ""
    "{% else %}{{ message.content }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}" + _ASSISTANT + "{% endif %}"
)

Message = dict[str, str]


@dataclass(frozen=True, slots=True)
class Chats:
    """Files of request bodies, one a line, and the blocks that workers are said to hold.

    Attributes:
        tokenizer: a model's directory: DeepSeek's tokenizer with a chat template.
        short: new text each time; `short_tokens` long.
        long: new text each time; `long_tokens` long.
        sessions: `long_tokens` long; nine tenths are the same in each request of a session.
        streams: as short as `short`, with many events.
        big: one body of 31 MB.
        held: sequence hashes of what is the same in each session.
    """

    tokenizer: Path
    short_tokens: int
    long_tokens: int
    short: Path
    long: Path
    sessions: Path
    streams: Path
    big: Path
    held: Sequence[NDArray[np.uint64]]


def make_chats(
    folder: Path, *, texts: int, short_tokens: int, long_tokens: int, events: int
) -> Chats:
    """Write all files into `folder`; `events` are those of an answer to one of `streams`."""
    source = deepseek_folder()
    (folder / "tokenizer.json").symlink_to(source / "tokenizer.json")
    (folder / "tokenizer_config.json").symlink_to(source / "tokenizer_config.json")
    (folder / "chat_template.jinja").write_text(_TEMPLATE)

    def new_text(tokens: int, max_tokens: int = 1) -> list[str]:
        made = make_texts(source, texts=texts, tokens=tokens - _MARK_TOKENS, seed=tokens)
        return [_body([_message("user", f"{_MARK} {text.text}")], max_tokens) for text in made]

    def file(name: str, bodies: Sequence[str]) -> Path:
        path = folder / name
        path.write_text("".join(body + "\n" for body in bodies))
        return path

    pasts = _pasts(source, texts // 2, long_tokens)
    last = make_texts(source, texts=1, tokens=long_tokens // TURNS, seed=3)[0].text
    asked = _message("user", f"{_MARK} {last}")
    corpus = " ".join(text.text for text in make_texts(source, texts=8, tokens=4_000, seed=4))
    big = f"{_MARK} " + corpus * (_BIG_BODY_BYTES // len(json.dumps(corpus)))
    return Chats(
        tokenizer=folder,
        short_tokens=short_tokens,
        long_tokens=long_tokens,
        short=file("short", new_text(short_tokens)),
        long=file("long", new_text(long_tokens)),
        sessions=file("sessions", [_body([*past, asked], 1) for past in pasts]),
        streams=file("streams", new_text(short_tokens, events)),
        big=file("big", [_body([_message("user", big)], 1)]),
        held=_held(source, pasts),
    )


def _pasts(source: Path, sessions: int, tokens: int) -> list[list[Message]]:
    """The first nine messages of each session; a tenth of the tokens each."""
    texts = make_texts(source, texts=sessions * TURNS, tokens=tokens // TURNS, seed=2)
    roles = ["system", *("user", "assistant") * (TURNS // 2 - 1)]
    return [
        [_message(role, f"{number} {text.text}") for role, text in zip(roles, chosen, strict=False)]
        for number, chosen in enumerate(zip(*[iter(texts)] * TURNS, strict=True))
    ]


def _held(source: Path, pasts: Sequence[Sequence[Message]]) -> list[NDArray[np.uint64]]:
    tokenizer = Tokenizer.from_file(str(source / "tokenizer.json"))
    rendered = [_rendered(past) for past in pasts]
    tokens = [
        np.array(encoding.ids, dtype=np.uint32)
        for encoding in tokenizer.encode_batch(rendered, add_special_tokens=False)
    ]
    return [sequence_hashes(chunk_hashes(ids, BLOCK_SIZE)) for ids in tokens]


def _rendered(messages: Sequence[Message]) -> str:
    """The prompt that the chat template makes of them."""
    wraps = {"system": ("", ""), "user": (_USER, ""), "assistant": (_ASSISTANT, _EOS)}
    return _BOS + "".join(
        before + message["content"] + after
        for message in messages
        for before, after in [wraps[message["role"]]]
    )


def _message(role: str, content: str) -> Message:
    return {"role": role, "content": content}


def _body(messages: Sequence[Message], max_tokens: int) -> str:
    return json.dumps(
        {"model": MODEL, "messages": messages, "stream": True, "max_tokens": max_tokens}
    )
