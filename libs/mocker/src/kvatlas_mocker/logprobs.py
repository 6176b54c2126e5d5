"""Made-up log probabilities, in the two forms of the OpenAI API. A token always has the same one.

The chosen token is the likeliest; the alternatives are other tokens that the mock may say, each
half as far down again.
"""

from collections.abc import Sequence
from typing import Any, Protocol

_STEP = 0.5


class TokenText(Protocol):
    """The texts of single tokens, as a `Tokenizer` knows them."""

    @property
    def choices(self) -> Sequence[int]:
        """Tokens that the mock may say."""
        ...

    def decode(self, tokens: list[int]) -> str:
        """The text of tokens."""
        ...

    def piece(self, token: int) -> str:
        """The text of one of `choices`."""
        ...


def logprob(token: int) -> float:
    """The log probability of a token that was chosen."""
    return -(token % 97 + 1) / 100.0


def chat_logprobs(
    text: TokenText, said: Sequence[tuple[str, int]], *, alternatives: int
) -> dict[str, Any]:
    """`logprobs` of a chat's choice."""
    return {
        "content": [
            {
                **_entry(piece, logprob(token)),
                "top_logprobs": [
                    _entry(other, value) for other, value in _top(text, piece, token, alternatives)
                ],
            }
            for piece, token in said
        ],
        "refusal": None,
    }


def completion_logprobs(
    text: TokenText,
    pieces: Sequence[str],
    tokens: Sequence[int],
    *,
    alternatives: int,
    begin: int,
) -> dict[str, Any]:
    """`logprobs` of a completion's choice, whose text goes on at `begin`.

    Unlike in an engine, a prompt's first token has one too.
    """
    offsets: list[int] = []
    at = begin
    for piece in pieces:
        offsets.append(at)
        at += len(piece)
    pairs = list(zip(pieces, tokens, strict=True))
    return {
        "text_offset": offsets,
        "tokens": list(pieces),
        "token_logprobs": [logprob(token) for token in tokens],
        "top_logprobs": [dict(_top(text, *pair, alternatives)) for pair in pairs],
    }


def _entry(piece: str, value: float) -> dict[str, Any]:
    return {"token": piece, "logprob": value, "bytes": list(piece.encode())}


def _top(text: TokenText, piece: str, token: int, count: int) -> list[tuple[str, float]]:
    """The likeliest `count` tokens, the chosen one first, each text once."""
    found = {piece: logprob(token)}
    for other in text.choices:
        if len(found) >= count:
            break
        found.setdefault(text.piece(other), logprob(token) - _STEP * len(found))
    return list(found.items())[:count]
