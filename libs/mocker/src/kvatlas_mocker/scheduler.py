"""Continuous batching over one prefix cache, one step at a time.

A step is a simplified one of vLLM's. Running requests come first, each with one decode token or the
next part of its prompt. The rest of the step's token budget admits waiting requests in order of
arrival. If a decoding request finds no free block, the request admitted last is preempted: it frees
its blocks, goes to the head of the queue, and later computes again what the cache has lost.

Pure: `Rank` calls `begin_step` and `end_step` and decides how long a step takes.
"""

import itertools
from array import array
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from kvatlas_mocker.cache import PrefixCache, Sequence
from kvatlas_mocker.hashing import BlockHasher, HashKey


class QueueFullError(Exception):
    """The queue of waiting requests is full."""


@dataclass(slots=True, eq=False)
class Request:
    """One generation. Only the scheduler writes the fields below `output`.

    `output` yields the tokens to generate, at least `output_max` of them.
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
        """A request for `output_max` tokens after `prompt`; takes ownership of the array."""
        return cls(len(prompt), Sequence(prompt, key), output_max, output)


@dataclass(slots=True)
class Step:
    """The work of one step."""

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
    """A token that a step generated for a request."""

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
            QueueFullError: the queue is full.
        """
        if len(self.waiting) >= self._waiting_max:
            raise QueueFullError
        self.waiting.append(request)

    def abort(self, request: Request) -> None:
        """End a running or waiting request; what it computed stays cached."""
        if request.ended:
            return
        request.ended = True
        if request in self.running:
            self.running.remove(request)
            self.cache.release(request.sequence)
        else:
            self.waiting.remove(request)

    def begin_step(self) -> Step | None:
        """Plan the next step and allocate its blocks; None: there is nothing to do."""
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
        """Complete a step: generate a token for each request whose tokens are all computed."""
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
        """All running and waiting requests."""
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
        """Add a request to a step. Like vLLM, cache its blocks at once, for others in the step."""
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


def pseudorandom_tokens(seed: int, choices: "array[int]") -> Iterator[int]:
    """An endless pseudorandom sequence of `choices`, from `seed` (Knuth's MMIX generator)."""
    state = seed
    for _ in itertools.repeat(None):
        state = (state * 6364136223846793005 + 1442695040888963407) & 0xFFFF_FFFF_FFFF_FFFF
        yield choices[(state >> 33) % len(choices)]
