"""The texts on which a fast tokenizer must agree with the reference before it is used.

A wrong id shifts every later block and costs each hit without an error. So the texts cover what
implementations treat differently: scripts, joiners, runs of whitespace, digits, control characters,
text that looks like special tokens, and long words. The random part is seeded, so it repeats.
"""

import random
from collections.abc import Iterator, Sequence
from typing import Final

_FIXED: Final = (
    "",
    " ",
    "\n",
    "a",
    "Hello, world!",
    "  leading and trailing  ",
    "tabs\tand\r\nline ends\n\n\nof \r both kinds",
    " " * 257 + "x",
    "\n" * 65,
    "don't I'll we've you're he'd SHE'S 'tis",
    "CamelCase snake_case kebab-case SCREAMING_CASE x1y2z3",
    "3.14159 1,000,000 0x1F 1e-9 2026-11-21T10:39:04Z ١٢٣ ४५६ Ⅷ ½",
    "def f(x: int) -> list[str]:\n    return [f'{i:>8}' for i in range(x)]  # note\n",
    '{"key": [1, 2.5, null, true], "nested": {"a\\"b": "\\u00e9"}}',
    "<html><body class='x'>&nbsp;</body></html>",
    "https://example.com/path?query=1&b=%20#frag user@example.org",
    "naïve café Ångström ﬁ Ǆ ß ſ İ ı",  # noqa: RUF001 - the look-alikes are the point
    "e\u0301 a\u030a\u0323 \u1100\u1161\u11a8 각",
    "日本語のテキスト、中文文本。한국어 텍스트!",
    "Русский текст, ελληνικά, עברית, العربية, हिन्दी, ไทย, தமிழ்",
    "🙂 👩‍👩‍👧‍👦 🏳️‍🌈 🇩🇪 ✨️ 👍🏽",
    "\u200b\u200d\ufeff\u00a0\u3000\u2028\u2029\u202e",
    "\x00\x01\x07\x1b[31m\x7f\x85",
    "\U00010348\U0001f9ff\U000e0041\ufffd\uffff",
    "x" * 1000,
    "ab" * 700 + " " + "字" * 300,
    "-" * 80 + "\n" + "=" * 81 + "\n" + "*" * 7,
    "<s></s><unk><|endoftext|><|im_start|>user<|im_end|>[INST][/INST]<pad>",
)
_ALPHABETS: Final = (
    (0x20, 0x7E),
    (0xA0, 0x24F),
    (0x370, 0x52F),
    (0x590, 0x6FF),
    (0x900, 0xDFF),
    (0x3040, 0x30FF),
    (0x4E00, 0x9FFF),
    (0xAC00, 0xD7A3),
    (0x1F300, 0x1FAFF),
)


def corpus(added_tokens: Sequence[str]) -> Iterator[str]:
    """The texts to compare; `added_tokens` are the texts of the tokenizer's own special tokens."""
    yield from _FIXED
    for token in added_tokens[:64]:
        yield token
        yield f"a{token}b {token} c{token}{token}\n"
    rng = random.Random(1337)
    for low, high in _ALPHABETS:
        for length in (8, 64, 400):
            yield _random_text(rng, low, high, length)
    yield " ".join(
        _random_text(rng, *rng.choice(_ALPHABETS), rng.randint(1, 9)) for _ in range(900)
    )


def _random_text(rng: random.Random, low: int, high: int, length: int) -> str:
    spaces = " \n\t  "
    return "".join(
        rng.choice(spaces) if rng.random() < 0.15 else chr(rng.randint(low, high))  # noqa: PLR2004 - about as often as prose has spaces
        for _ in range(length)
    )
