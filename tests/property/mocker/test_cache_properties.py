"""Whatever requests come: never over capacity, and the events tell exactly what is cached."""

from array import array

from hypothesis import given, settings
from hypothesis import strategies as st

from kvatlas_mocker.cache import PrefixCache, Sequence
from kvatlas_mocker.events import AllBlocksCleared, BlockRemoved, BlockStored
from kvatlas_mocker.hashing import BlockHasher, HashKey
from kvatlas_mocker.scheduler import Request, Scheduler, pseudorandom_tokens

SIZE = 2
HASHER = BlockHasher(seed="property", block_size=SIZE)

# A tiny vocabulary and short prompts: prefixes are shared and evicted all the time.
PROMPTS = st.lists(st.integers(0, 1), min_size=1, max_size=12)
OPERATIONS = st.one_of(
    st.tuples(st.just("admit"), PROMPTS),
    st.tuples(st.just("say"), st.lists(st.integers(0, 1), min_size=2, max_size=2)),
    st.tuples(st.just("release"), st.lists(st.integers(0, 7), min_size=1, max_size=1)),
    st.tuples(st.just("reset"), st.just([])),
)


class Follower:
    """A reader of the events, with a plain set or with counts."""

    def __init__(self) -> None:
        self.counts: dict[int, int] = {}
        self.tokens: dict[int, tuple[list[int], int | None]] = {}

    def follow(self, cache: PrefixCache, *, counted: bool) -> None:
        for event in cache.take_events():
            match event:
                case BlockStored():
                    self._store(event, counted=counted)
                case BlockRemoved():
                    for block_hash in event.block_hashes:
                        self.counts[block_hash] -= 1
                        if not self.counts[block_hash]:
                            del self.counts[block_hash]
                case AllBlocksCleared():
                    self.counts.clear()

    def _store(self, event: BlockStored, *, counted: bool) -> None:
        parent = event.parent_block_hash
        assert len(event.token_ids) == len(event.block_hashes) * event.block_size
        for index, block_hash in enumerate(event.block_hashes):
            assert counted or block_hash not in self.counts
            self.counts[block_hash] = self.counts.get(block_hash, 0) + 1
            tokens = event.token_ids[index * SIZE : (index + 1) * SIZE]
            self.tokens[block_hash] = (tokens, parent)
            parent = block_hash


def check(cache: PrefixCache, live: list[Sequence], follower: Follower) -> None:
    held = [block for one in live for block in one.table]
    assert len(set(held)) + cache.free_blocks == cache.blocks
    for block in range(cache.blocks):
        assert cache._references[block] == held.count(block)  # pyright: ignore[reportPrivateUsage] - looks inside on purpose
    cached = {h: (array("I", t).tolist(), p) for h, t, p in cache.cached()}
    assert set(cached) == set(follower.counts)
    assert cached == {block_hash: follower.tokens[block_hash] for block_hash in cached}


def naive_hits(prompt: list[int], cached: set[int]) -> int:
    """The deepest prefix of full blocks, short of the last token, all of whose hashes are known."""
    depth = 0
    while (depth + 1) * SIZE < len(prompt):
        hashes: list[int] = []
        HASHER.extend(hashes, array("I", prompt[: (depth + 1) * SIZE]), HashKey())
        if hashes[-1] not in cached:
            break
        depth += 1
    return depth * SIZE


@settings(max_examples=200, deadline=None)
@given(
    blocks=st.integers(1, 12),
    repeat_stores=st.booleans(),
    operations=st.lists(OPERATIONS, max_size=40),
)
def test_events_replayed_give_exactly_the_cached_set(
    blocks: int, repeat_stores: bool, operations: list[tuple[str, list[int]]]
) -> None:
    cache = PrefixCache(blocks=blocks, block_size=SIZE, repeat_stores=repeat_stores)
    follower = Follower()
    live: list[Sequence] = []
    for verb, values in operations:
        if verb == "admit":
            made = Sequence(array("I", values), HashKey())
            HASHER.extend(made.hashes, made.tokens, made.key)
            expected = naive_hits(values, set(follower.counts))
            hit = cache.admit(made)
            if hit is None:
                assert -(-len(values) // SIZE) - expected // SIZE > 0
                assert made.table == []
            else:
                assert hit == expected
                cache.register(made, len(values))
                live.append(made)
        elif verb == "say" and live:
            live[0].tokens.extend(values)
            if cache.grow(live[0]):
                HASHER.extend(live[0].hashes, live[0].tokens, live[0].key)
                cache.register(live[0], len(live[0].tokens))
            else:
                cache.release(live.pop(0))
        elif verb == "release" and live:
            cache.release(live.pop(values[0] % len(live)))
        elif verb == "reset":
            assert cache.reset() == (not live)
        follower.follow(cache, counted=repeat_stores)
        check(cache, live, follower)


ORDERS = st.lists(
    st.tuples(PROMPTS, st.integers(1, 8), st.integers(0, 3), st.booleans()), min_size=1, max_size=12
)


@settings(max_examples=150, deadline=None)
@given(orders=ORDERS, blocks=st.integers(10, 24), step_tokens=st.integers(1, 16))
def test_every_request_ends_with_all_its_tokens_and_all_blocks_come_back(
    orders: list[tuple[list[int], int, int, bool]], blocks: int, step_tokens: int
) -> None:
    cache = PrefixCache(blocks=blocks, block_size=SIZE)
    scheduler = Scheduler(
        cache, HASHER, running_max=3, waiting_max=100, step_tokens_max=step_tokens
    )
    follower = Follower()
    said: dict[Request, int] = {}
    aborted: set[Request] = set()

    def turn() -> bool:
        step = scheduler.begin_step()
        if step is None:
            return False
        assert sum(tokens for _, tokens in step.parts) <= step_tokens
        for sampled in scheduler.end_step(step):
            said[sampled.request] += 1
            assert sampled.last == (said[sampled.request] == sampled.request.output_max)
        follower.follow(cache, counted=False)
        check(cache, [one.sequence for one in scheduler.running], follower)
        return True

    for prompt, output, pause, abort in orders:
        request = Request.of(
            array("I", prompt),
            HashKey(),
            output_max=output,
            output=pseudorandom_tokens(sum(prompt), array("I", [0, 1])),
        )
        scheduler.add(request)
        said[request] = 0
        for _ in range(pause):
            turn()
        if abort and not request.ended:
            scheduler.abort(request)
            aborted.add(request)
    while turn():
        pass
    assert scheduler.requests() == []
    assert cache.usage == 0
    assert all(said[one] == one.output_max for one in said if one not in aborted)
