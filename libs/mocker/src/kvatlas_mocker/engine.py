"""The engine behind the HTTP API: served models, ranks, tokenizer, faults and restarts."""

import secrets
import time
from array import array
from dataclasses import dataclass

import zmq.asyncio

from kvatlas_chassis import TaskSet
from kvatlas_mocker.bodies import ApiError
from kvatlas_mocker.cache import PrefixCache
from kvatlas_mocker.chat_template import ChatTemplate
from kvatlas_mocker.event_stream import EventStream, bind_streams
from kvatlas_mocker.faults import Faults
from kvatlas_mocker.hashing import BlockHasher, HashKey
from kvatlas_mocker.rank import Rank, TokenStream
from kvatlas_mocker.scheduler import QueueFullError, Request, Scheduler, pseudorandom_tokens
from kvatlas_mocker.settings import MockEngineSettings
from kvatlas_mocker.timing import StepCost
from kvatlas_mocker.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Served:
    """A name that requests may ask for: the model or one of its adapters."""

    name: str
    lora_id: int | None

    def hash_key(self, cache_salt: str | None) -> HashKey:
        """The key that enters the block hashes of a request for this name."""
        lora_name = self.name if self.lora_id is not None else None
        return HashKey(lora_name, self.lora_id, cache_salt or None)


class Engine:
    """Owns the ranks and their sockets; `start` runs them, `close` ends them."""

    def __init__(
        self,
        settings: MockEngineSettings,
        tasks: TaskSet,
        tokenizer: Tokenizer,
        template: ChatTemplate,
    ) -> None:
        self.settings = settings
        self.tokenizer = tokenizer
        self.template = template
        self.faults = Faults()
        self.epoch = _epoch_after(0)
        self.served = [Served(settings.model, None)]
        self.served += [Served(name, index) for index, name in enumerate(settings.lora, start=1)]
        self._tasks = tasks
        self._context = zmq.asyncio.Context()
        self.ranks = [self._rank(index) for index in range(settings.dp_ranks)]

    def start(self) -> None:
        """Bind the event sockets and run.

        Raises:
            FatalError: an address cannot be used.
        """
        if self.settings.events is not None:
            streams = [rank.event_stream for rank in self.ranks]
            bind_streams(streams, events=self.settings.events, replay=self.settings.replay)
        for rank in self.ranks:
            self._tasks.start(rank.run(), name=f"rank {rank.index}")

    def close(self) -> None:
        """Release the sockets."""
        for rank in self.ranks:
            rank.event_stream.close()
        self._context.term()

    async def restart(self) -> None:
        """Restart as after a kill: empty cache, no requests, sequence numbers from 0.

        Raises:
            FatalError: an event socket's address was taken in the meantime.
        """
        self.epoch = _epoch_after(self.epoch)
        for rank in self.ranks:
            rank.hasher = self._hasher()
            await rank.restart(self._scheduler(rank.hasher))

    def find(self, name: str | None) -> Served:
        """The model or adapter of that name; None: the model.

        Raises:
            ApiError: 404, with vLLM's text.
        """
        if not name:
            return self.served[0]
        for served in self.served:
            if served.name == name:
                return served
        raise ApiError(
            f"The model `{name}` does not exist.", status=404, kind="NotFoundError", param="model"
        )

    def rank(self, header: str | None) -> Rank:
        """The rank that `X-data-parallel-rank` names, or the least loaded one.

        Like vLLM, ignores a header that is not a number.

        Raises:
            ApiError: 400, there is no such rank.
        """
        try:
            return self.rank_at(int(header or ""))
        except ValueError:
            return min(self.ranks, key=lambda rank: (rank.load, rank.index))

    def rank_at(self, index: int) -> Rank:
        """The rank with that number.

        Raises:
            ApiError: 400, there is no such rank.
        """
        if not 0 <= index < len(self.ranks):
            raise ApiError(f"data_parallel_rank {index} is out of range [0, {len(self.ranks)}).")
        return self.ranks[index]

    def submit(
        self,
        rank: Rank,
        tokens: "array[int]",
        key: HashKey,
        *,
        output_max: int,
        output: "int | array[int]",
    ) -> TokenStream:
        """Queue a generation; takes ownership of the array `tokens`.

        `output`: the tokens to say, or a seed for pseudorandom ones.

        Raises:
            ApiError: 503, the queue is full.
        """
        said = (
            pseudorandom_tokens(output, self.tokenizer.choices)
            if isinstance(output, int)
            else iter(output)
        )
        request = Request.of(tokens, key, output_max=output_max, output=said)
        try:
            return rank.submit(request)
        except QueueFullError:
            raise ApiError(
                "The engine's queue is full.", status=503, kind="ServiceUnavailableError"
            ) from None

    def _rank(self, index: int) -> Rank:
        settings = self.settings
        hasher = self._hasher()
        return Rank(
            index,
            scheduler=self._scheduler(hasher),
            hasher=hasher,
            cost=StepCost(
                base_s=settings.step_ms / 1e3,
                prefill_token_s=settings.prefill_token_us / 1e6,
                decode_request_s=settings.decode_request_us / 1e6,
                speedup=settings.speedup,
            ),
            event_stream=EventStream(
                self._context,
                self._tasks,
                topic=settings.topic,
                dp_rank=index,
                faults=self.faults,
            ),
        )

    def _hasher(self) -> BlockHasher:
        seed = self.settings.hash_seed or secrets.token_hex(8)
        return BlockHasher(seed=seed, block_size=self.settings.block_size)

    def _scheduler(self, hasher: BlockHasher) -> Scheduler:
        settings = self.settings
        cache = PrefixCache(
            blocks=settings.blocks,
            block_size=settings.block_size,
            repeat_stores=settings.repeat_stores,
        )
        return Scheduler(
            cache,
            hasher,
            running_max=settings.max_running,
            waiting_max=settings.max_waiting,
            step_tokens_max=settings.max_step_tokens,
        )


def _epoch_after(last: int) -> int:
    """Microseconds of the wall clock, but always above this process's last epoch."""
    return max(time.time_ns() // 1000, last + 1)
