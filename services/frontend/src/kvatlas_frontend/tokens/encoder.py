"""Encodes text as token ids in this process, with a fast tokenizer or the reference.

`fastokens` returns one buffer without a Python object per token and releases the GIL. On prompts of
8,000 tokens it is about twenty times faster than `tokenizers`. It is used only if it loads the
model and agrees with `tokenizers` on the texts of the self-check.
"""

import json
import logging
from pathlib import Path
from typing import Any, Final, Protocol, cast

import numpy as np
import tokenizers
from numpy.typing import NDArray

from kvatlas_chassis import FatalError
from kvatlas_frontend.tokens.selfcheck import corpus
from kvatlas_native import TextEncoder

log = logging.getLogger(__name__)


class Encoder(Protocol):
    """Encodes text as token ids, uint32[n]. Thread-safe; releases the GIL while it works."""

    name: str
    # A text of up to this length is encoded on the event loop: handing it to a thread and back would
    # take longer. The loop only decides, so nothing that streams has to wait meanwhile.
    inline_chars_max: int

    def encode(self, text: str, *, add_special_tokens: bool) -> NDArray[np.uint32]:
        """The token ids of a text, with or without the tokens that open and close it."""
        ...


class FastEncoder:
    """`fastokens`. The reader of prompts in the data plane shares it."""

    name = "fastokens"
    inline_chars_max = 64 * 1024  # a third of a millisecond, where 8,000 tokens take 125 us

    def __init__(self, file: Path) -> None:
        self.native: Final = TextEncoder(file)

    def encode(self, text: str, *, add_special_tokens: bool) -> NDArray[np.uint32]:
        """See `Encoder`."""
        return self.native.encode(text, add_special_tokens=add_special_tokens)


class ReferenceEncoder:
    """`tokenizers`, the reference implementation."""

    name = "tokenizers"
    inline_chars_max = 128

    def __init__(self, file: Path) -> None:
        self._tokenizer = tokenizers.Tokenizer.from_file(str(file))
        # Engines ignore the truncation and padding settings of a tokenizer.json.
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()

    def encode(self, text: str, *, add_special_tokens: bool) -> NDArray[np.uint32]:
        """See `Encoder`."""
        ids = self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids
        return np.array(ids, dtype=np.uint32)


def load_encoder(file: Path) -> Encoder:
    """The encoder for a `tokenizer.json`.

    Raises:
        FatalError: the file is missing or is no tokenizer; the message names it.
    """
    try:
        description = json.loads(file.read_bytes())
    except OSError as error:
        raise FatalError(f"--tokenizer {file}: {error.strerror}") from None
    except ValueError:
        raise FatalError(f"--tokenizer {file}: not a tokenizer.json (no valid JSON)") from None
    try:
        reference = ReferenceEncoder(file)
    except Exception as error:  # noqa: BLE001 - the library raises bare Exception for a bad file
        raise FatalError(f"--tokenizer {file}: not a tokenizer.json ({error})") from None
    fast = _load_fast(file)
    if fast is None:
        return reference
    difference = first_difference(fast, reference, added_token_texts(description))
    if difference is None:
        return fast
    text = difference[:80]
    log.warning("fastokens differs from tokenizers on %r; using tokenizers, which is slower", text)
    return reference


def _load_fast(file: Path) -> Encoder | None:
    try:
        return FastEncoder(file)
    except ValueError as error:
        log.warning("fastokens cannot load %s (%s); using tokenizers, which is slower", file, error)
        return None


def first_difference(encoder: Encoder, reference: Encoder, added_tokens: list[str]) -> str | None:
    """The first text of the self-check on which the two disagree, or None."""
    for text in corpus(added_tokens):
        for special in (True, False):
            ours = encoder.encode(text, add_special_tokens=special)
            theirs = reference.encode(text, add_special_tokens=special)
            if not np.array_equal(ours, theirs):
                return text
    return None


def added_token_texts(description: object) -> list[str]:
    """The texts of the added tokens in a parsed `tokenizer.json`."""
    if not isinstance(description, dict):
        return []
    table = cast("dict[str, Any]", description)
    entries = cast("list[dict[str, Any]]", table.get("added_tokens") or [])
    return [str(entry["content"]) for entry in entries if entry.get("content")]
