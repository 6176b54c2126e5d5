"""Compares what routing expected of a prompt with the usage that the engine reports.

A wrong token count costs every later hit without an error, and so does a promised depth that the
engine does not hold. Both show in the metrics here. Answers are forwarded unparsed and only their
last bytes are searched, so a chunk costs nothing more.
"""

import logging
import re
from dataclasses import dataclass
from typing import Final

from kvatlas_frontend.metrics import FrontendMetrics

log = logging.getLogger(__name__)

_PROMPT_TOKENS: Final = re.compile(rb'"(?:prompt|input)_tokens"\s*:\s*(\d+)')
# Anthropic's count of input tokens is without those that were cached, but not in every release.
_CACHED_APART: Final = re.compile(rb'"cache_(?:read|creation)_input_tokens"\s*:\s*\d')
_CACHED_TOKENS: Final = re.compile(rb'"cached_tokens"\s*:\s*(\d+)')
_WARNING_INTERVAL_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Expected:
    """The facts about a prompt that routing relied on."""

    prompt_tokens: int
    depth: int  # blocks


class UsageCheck:
    """Counts equal and different reports; logs a warning about a difference at most once a minute."""

    def __init__(self, metrics: FrontendMetrics, *, block_size: int) -> None:
        self._block_size = block_size
        self._equal = metrics.prompts_compared.labels("equal")
        self._drift = metrics.prompts_compared.labels("drift")
        self._kept = metrics.promises.labels("kept")
        self._short = metrics.promises.labels("short")
        self._promised_blocks = metrics.promised_blocks
        self._cached_blocks = metrics.cached_blocks
        self._next_warning_s = 0.0

    def compare(self, tail: bytes, expected: Expected, now_s: float) -> None:
        """Compare with the usage in `tail`, the last bytes of a complete answer, if it has one."""
        if b'"usage"' not in tail or _CACHED_APART.search(tail) is not None:
            return
        prompt_tokens = _last_number(_PROMPT_TOKENS, tail)
        if prompt_tokens is None:
            return
        if prompt_tokens == expected.prompt_tokens:
            self._equal.inc()
        else:
            self._drift.inc()
            if now_s >= self._next_warning_s:
                self._next_warning_s = now_s + _WARNING_INTERVAL_S
                log.warning(
                    "a prompt has %d tokens here and %d in the engine: its blocks cannot match; "
                    "is --tokenizer the engine's?",
                    expected.prompt_tokens,
                    prompt_tokens,
                )
        cached_tokens = _last_number(_CACHED_TOKENS, tail)
        if cached_tokens is None:
            return
        cached = cached_tokens // self._block_size
        self._promised_blocks.inc(expected.depth)
        self._cached_blocks.inc(cached)
        if expected.depth:
            (self._kept if cached >= expected.depth else self._short).inc()


def _last_number(pattern: re.Pattern[bytes], tail: bytes) -> int | None:
    found = pattern.findall(tail)
    return int(found[-1]) if found else None
