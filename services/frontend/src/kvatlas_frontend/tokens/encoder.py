"""Text to token ids on this machine: the fast tokenizer where it can be trusted, else the reference.

`fastokens` gives one buffer without a Python object per token and releases the GIL; on prompts of
8,000 tokens it is some twenty times faster than `tokenizers`. It is used only where it loads the
model and agrees with `tokenizers` on the self-check's texts.
"""

import json
import logging
from pathlib import Path
from typing import Any, Protocol, cast

import fastokens  # pyright: ignore[reportMissingTypeStubs] - its types are in its native part
import numpy as np
import tokenizers
from numpy.typing import NDArray

from kvatlas_chassis import FatalError
from kvatlas_frontend.tokens.selfcheck import corpus

log = logging.getLogger(__name__)


class Encoder(Protocol):
    """Text to ids, uint32[n]. Thread-safe; releases the GIL while it works."""

    name: str
    inline_chars_max: int  # a text up to here costs less than a thread's hand-over and back

    def encode(self, text: str, *, add_special_tokens: bool) -> NDArray[np.uint32]:
        """Token ids of a text, with the tokens that open and close one if so asked."""
        ...


class FastEncoder:
    """`fastokens`."""

    name = "fastokens"
    inline_chars_max = 1024

    def __init__(self, file: Path) -> None:
        self._tokenizer = fastokens.Tokenizer.from_file(str(file))
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()

    def encode(self, text: str, *, add_special_tokens: bool) -> NDArray[np.uint32]:
        """As `Encoder` says."""
        ids, _ = self._tokenizer.encode_batch_flat([text], add_special_tokens=add_special_tokens)
        return np.frombuffer(ids, dtype=np.uint32)


class ReferenceEncoder:
    """`tokenizers`, which the others are measured by."""

    name = "tokenizers"
    inline_chars_max = 128

    def __init__(self, file: Path) -> None:
        self._tokenizer = tokenizers.Tokenizer.from_file(str(file))
        # Engines neither cut nor pad a prompt because its tokenizer.json says so.
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()

    def encode(self, text: str, *, add_special_tokens: bool) -> NDArray[np.uint32]:
        """As `Encoder` says."""
        ids = self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids
        return np.array(ids, dtype=np.uint32)


def load_encoder(file: Path) -> Encoder:
    """The encoder for a `tokenizer.json`.

    Raises:
        FatalError: the file is missing or is no tokenizer; one line names it.
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
    except (ValueError, RuntimeError, OSError, NotImplementedError) as error:
        log.warning("fastokens cannot load %s (%s); using tokenizers, which is slower", file, error)
        return None


def first_difference(encoder: Encoder, reference: Encoder, added_tokens: list[str]) -> str | None:
    """A text of the self-check on which the two disagree, or None."""
    for text in corpus(added_tokens):
        for special in (True, False):
            ours = encoder.encode(text, add_special_tokens=special)
            theirs = reference.encode(text, add_special_tokens=special)
            if not np.array_equal(ours, theirs):
                return text
    return None


def added_token_texts(description: object) -> list[str]:
    """The special words of a parsed `tokenizer.json`."""
    if not isinstance(description, dict):
        return []
    table = cast("dict[str, Any]", description)
    entries = cast("list[dict[str, Any]]", table.get("added_tokens") or [])
    return [str(entry["content"]) for entry in entries if entry.get("content")]
