"""Turns text into tokens and back: by bytes of UTF-8, or by a model's tokenizer.json."""

import asyncio
import re
from array import array
from pathlib import Path
from typing import Protocol

import fastokens  # pyright: ignore[reportMissingTypeStubs] - its types are in its native part
from tokenizers import Tokenizer as HfTokenizer

from kvatlas_chassis import FatalError

TOKEN_MAX = 0xFFFF_FFFF
_OFF_LOOP_CHARS = 2_000
"""Longer texts are encoded on a thread, without the GIL; for shorter ones the switch costs more."""
_PLAIN_WORD = re.compile(r"^[Ġ▁]?[a-z]{2,8}$")
_CHOICES_MAX = 4_096


class Tokenizer(Protocol):
    """The tokenizer's methods that the engine needs."""

    choices: "array[int]"
    """Tokens that the mock may generate: each decodes to the same text after any other."""

    async def encode(self, text: str, *, add_special_tokens: bool) -> "array[int]":
        """The tokens of a text, u32."""
        ...

    def decode(self, tokens: list[int]) -> str:
        """The text of tokens.

        Raises:
            ValueError: one of them is not a token.
        """
        ...

    def piece(self, token: int) -> str:
        """The text of one of `choices`."""
        ...


class ByteTokenizer:
    """Makes each byte of UTF-8 a token. Ids above 255, which prompts may hold, decode to nothing."""

    def __init__(self) -> None:
        self.choices = array("I", list(b"etaoinshrdlu etaoin shrdlu "))

    async def encode(self, text: str, *, add_special_tokens: bool) -> "array[int]":
        """The bytes; there are no special tokens."""
        del add_special_tokens
        return array("I", list(text.encode()))  # given bytes, array would take four as one item

    def decode(self, tokens: list[int]) -> str:
        """The text; bytes that are not UTF-8 become U+FFFD."""
        return bytes(token for token in tokens if 0 <= token <= 0xFF).decode(errors="replace")  # noqa: PLR2004 - a byte

    def piece(self, token: int) -> str:
        """The character; all choices are ASCII."""
        return chr(token)


class FileTokenizer:
    """Uses a tokenizer.json, read by the `tokenizers` library.

    `fast` encodes with `fastokens` instead, which is about twenty times cheaper: many engines can
    share a small machine. It is not checked against the reference, so it is off by default.
    """

    def __init__(self, path: Path, *, fast: bool = False) -> None:
        """Load.

        Raises:
            FatalError: the file is missing or no tokenizer.
        """
        try:
            self._tokenizer = HfTokenizer.from_file(str(path))
        except Exception as error:  # noqa: BLE001 - the library raises Exception itself
            raise FatalError(f"cannot read the tokenizer {path}: {error}") from None
        self._tokenizer.no_truncation()  # an engine neither truncates nor pads a prompt
        self._tokenizer.no_padding()
        self._encoder = _fast_encoder(path) if fast else self._tokenizer
        words = sorted(
            index
            for word, index in self._tokenizer.get_vocab(with_added_tokens=False).items()
            if _PLAIN_WORD.match(word)
        )
        if not words:
            raise FatalError(f"the tokenizer {path} has no plain lower-case words to generate")
        self.choices = array("I", words[:: max(1, len(words) // _CHOICES_MAX)])
        self._anchor = self.choices[0]
        self._anchor_text = self._tokenizer.decode([self._anchor])
        self._pieces: dict[int, str] = {}

    async def encode(self, text: str, *, add_special_tokens: bool) -> "array[int]":
        """The library's tokens, with its post-processor's special tokens if asked for."""
        if len(text) < _OFF_LOOP_CHARS:
            return self._encode(text, add_special_tokens)
        return await asyncio.to_thread(self._encode, text, add_special_tokens)

    def decode(self, tokens: list[int]) -> str:
        """The library's text with special tokens, as in vLLM's /detokenize."""
        size = self._tokenizer.get_vocab_size()
        if any(not 0 <= token < size for token in tokens):
            raise ValueError("a token id is out of vocabulary")
        return self._tokenizer.decode(tokens, skip_special_tokens=False)

    def piece(self, token: int) -> str:
        """The text, decoded after another token: some tokenizers strip a leading space."""
        text = self._pieces.get(token)
        if text is None:
            pair = self._tokenizer.decode([self._anchor, token])
            text = self._pieces[token] = pair[len(self._anchor_text) :]
        return text

    def _encode(self, text: str, special: bool) -> "array[int]":  # noqa: FBT001 - to_thread passes by position
        return array("I", self._encoder.encode(text, add_special_tokens=special).ids)


class _Encoding(Protocol):
    @property
    def ids(self) -> list[int]: ...


class _Encoder(Protocol):
    def encode(self, text: str, /, *, add_special_tokens: bool) -> _Encoding: ...


def _fast_encoder(path: Path) -> _Encoder:
    try:
        tokenizer = fastokens.Tokenizer.from_file(str(path))
    except (ValueError, RuntimeError, NotImplementedError) as error:
        raise FatalError(f"fastokens cannot load {path}: {error}") from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def open_tokenizer(where: str, *, fast: bool = False) -> Tokenizer:
    """The tokenizer named `bytes`, in a tokenizer.json, or in a directory with one.

    Raises:
        FatalError: there is no such file, or it is not a tokenizer.
    """
    if where == "bytes":
        return ByteTokenizer()
    path = Path(where)
    return FileTokenizer(path / "tokenizer.json" if path.is_dir() else path, fast=fast)
