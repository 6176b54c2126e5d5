"""Continuous batching over one prefix cache, a step at a time.

A step is vLLM's, simplified: requests that run come first, each with one decode token or the next
part of its prompt; what is left of the step's token budget admits waiting requests in order of
arrival. Where a decoding request finds no block, the request admitted last is preempted: it gives
its blocks back, goes to the head of the queue and computes again what the cache has lost by then.

Pure: `begin_step` and `end_step` are called by whoever knows how long a step takes.
"""

import itertools
from array import array
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from kvatlas_mocker.cache import PrefixCache, Sequence
from kvatlas_mocker.hashing import BlockHasher, HashKey


class QueueFullError(Exception):
    """As many requests wait as may."""


@dataclass(slots=True, eq=False)
class Request:
    """One generation. Everything below `output` is written by the scheduler alone.

    `output` gives the tokens that the model will say; it never ends before `output_max` tokens.
    """

    prompt_tokens: int
    sequence: Sequence
    output_max: int
    output: Iterator[int]
    computed: int = 0
    generated: int = 0
    cached_tokens: int | None = None  # at first admission; None: not admitted yet
    ended: bool = False

    @classmethod
    def of(
        cls, prompt: "array[int]", key: HashKey, *, output_max: int, output: Iterator[int]
    ) -> "Request":
        """A request for `output_max` tokens after `prompt`; the prompt's array is taken over."""
        return cls(len(prompt), Sequence(prompt, key), output_max, output)


@dataclass(slots=True)
class Step:
    """What one step computes."""

    parts: list[tuple[Request, int]] = field(default_factory=list[tuple[Request, int]])
    prefill_tokens: int = 0
    decoding: int = 0

    def add(self, request: Request, tokens: int) -> None:
        """Compute the next `tokens` tokens of the request in this step."""
        self.parts.append((request, tokens))
        if request.generated and tokens == 1:
            self.decoding += 1
        else:
            self.prefill_tokens += tokens


@dataclass(frozen=True, slots=True)
class Sampled:
    """A token that a step gave to a request."""

    request: Request
    token: int
    last: bool


@dataclass(slots=True)
class Counters:
    """Totals since the start."""

    prompt_tokens: int = 0
    generated_tokens: int = 0
    queried_tokens: int = 0
    hit_tokens: int = 0
    preemptions: int = 0


class Scheduler:
    """Owns the queue and the batch of one data-parallel rank."""

    def __init__(
        self,
        cache: PrefixCache,
        hasher: BlockHasher,
        *,
        running_max: int,
        waiting_max: int,
        step_tokens_max: int,
    ) -> None:
        self.cache = cache
        self.counters = Counters()
        self.running: list[Request] = []
        self.waiting: deque[Request] = deque()
        self._hasher = hasher
        self._running_max = running_max
        self._waiting_max = waiting_max
        self._step_tokens_max = step_tokens_max

    def add(self, request: Request) -> None:
        """Queue a request.

        Raises:
            QueueFullError: as many wait as may.
        """
        if len(self.waiting) >= self._waiting_max:
            raise QueueFullError
        self.waiting.append(request)

    def abort(self, request: Request) -> None:
        """Forget a request, wherever it is; what it computed stays cached."""
        if request.ended:
            return
        request.ended = True
        if request in self.running:
            self.running.remove(request)
            self.cache.release(request.sequence)
        else:
            self.waiting.remove(request)

    def begin_step(self) -> Step | None:
        """Choose what the next step computes, and give it blocks; None: there is nothing to do."""
        step = Step()
        budget = self._step_tokens_max
        preempted = False
        for request in list(self.running):
            if request not in self.running:  # preempted by one before it
                continue
            count = min(len(request.sequence.tokens) - request.computed, budget)
            if not count:
                break
            while not self.cache.grow(request.sequence):
                preempted = True
                if self._preempt_last() is request:
                    break
            else:
                self._plan(step, request, count)
                budget -= count
        if not preempted:
            self._admit(step, budget)
        return step if step.parts else None

    def end_step(self, step: Step) -> list[Sampled]:
        """Account for a step that is over; give each request whose tokens are computed its next."""
        sampled: list[Sampled] = []
        for request, count in step.parts:
            if request.ended:
                continue
            request.computed += count
            if request.computed < len(request.sequence.tokens):
                continue
            token = next(request.output)
            request.sequence.tokens.append(token)
            request.generated += 1
            self.counters.generated_tokens += 1
            last = request.generated >= request.output_max
            if last:
                request.ended = True
                self.running.remove(request)
                self.cache.release(request.sequence)
            sampled.append(Sampled(request, token, last))
        return sampled

    def requests(self) -> list[Request]:
        """All that run or wait."""
        return [*self.running, *self.waiting]

    def _admit(self, step: Step, budget: int) -> None:
        while self.waiting and budget and len(self.running) < self._running_max:
            request = self.waiting[0]
            sequence = request.sequence
            self._hasher.extend(sequence.hashes, sequence.tokens, sequence.key)
            cached = self.cache.admit(sequence)
            if cached is None:
                return
            self.waiting.popleft()
            self.running.append(request)
            request.computed = cached
            if request.cached_tokens is None:
                request.cached_tokens = cached
                self.counters.prompt_tokens += request.prompt_tokens
                self.counters.queried_tokens += request.prompt_tokens
                self.counters.hit_tokens += cached
            count = min(len(sequence.tokens) - cached, budget)
            self._plan(step, request, count)
            budget -= count

    def _plan(self, step: Step, request: Request, count: int) -> None:
        """Cache the blocks at once, as vLLM does: a request of the same step may share them."""
        step.add(request, count)
        sequence = request.sequence
        self._hasher.extend(sequence.hashes, sequence.tokens, sequence.key)
        self.cache.register(sequence, request.computed + count)

    def _preempt_last(self) -> Request:
        request = self.running.pop()
        self.cache.release(request.sequence)
        request.computed = 0
        self.waiting.appendleft(request)
        self.counters.preemptions += 1
        return request


def spoken_tokens(seed: int, choices: "array[int]") -> Iterator[int]:
    """An endless walk through `choices`, decided by `seed` alone (Knuth's MMIX generator)."""
    state = seed
    for _ in itertools.repeat(None):
        state = (state * 6364136223846793005 + 1442695040888963407) & 0xFFFF_FFFF_FFFF_FFFF
        yield choices[(state >> 33) % len(choices)]
