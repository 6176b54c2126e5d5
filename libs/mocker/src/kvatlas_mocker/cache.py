"""The paged prefix cache: a block table per sequence, reference counts, LRU of free blocks.

Pure: no clock, no I/O, no randomness. The rules are vLLM's:

- Only full blocks are cached, under the hash of the whole prefix.
- A free block keeps its content until it is allocated again, least recently freed first.
- A sequence frees its last block first, so a block is evicted before its parent.
- A lookup finds at most ⌊(tokens - 1) / block⌋ blocks: the last token is always computed.
- A removal's event comes before the event of the store that takes the block.

When a second request computes a block that is cached, vLLM stores it again: it sends a second
store event and, later, two removals. `repeat_stores` does the same. Without it the request shares
the cached block and frees its own copy; then the events, replayed into a plain set, always give
exactly what is cached.
"""

from array import array
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from kvatlas_mocker.events import AllBlocksCleared, BlockRemoved, BlockStored, CacheEvent
from kvatlas_mocker.hashing import HashKey

MEDIUM = "GPU"
GROUP = 0


@dataclass(slots=True, eq=False)
class Sequence:
    """The tokens of one request and the blocks that they lie in.

    `hashes` covers at least the full blocks that are registered or looked up; code that appends
    tokens must extend it (`BlockHasher.extend`). `table` and `registered` belong to the cache.
    """

    tokens: "array[int]"
    key: HashKey
    hashes: list[int] = field(default_factory=list[int])
    table: list[int] = field(default_factory=list[int])
    registered: int = 0


_Content: TypeAlias = tuple[int, bytes, int | None]
"""A cached block: hash, tokens, parent's hash. The tokens are bytes of little-endian u32: a list of
ints would take ten times the memory."""


class PrefixCache:
    """`blocks` physical blocks of `block_size` tokens. Not thread-safe.

    Every method that changes what is cached queues events; `take_events` returns them.
    """

    def __init__(self, *, blocks: int, block_size: int, repeat_stores: bool = False) -> None:
        self.blocks = blocks
        self.block_size = block_size
        self.evictions = 0
        self._repeat_stores = repeat_stores
        self._references = [0] * blocks
        self._contents: list[_Content | None] = [None] * blocks
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(blocks))
        self._holder: dict[int, int] = {}  # engine hash -> the block that a lookup finds
        self._copies: dict[int, list[int]] = {}  # further blocks with the same hash
        self._events: list[CacheEvent] = []

    @property
    def free_blocks(self) -> int:
        """Number of blocks that no sequence uses, with or without cached content."""
        return len(self._free)

    @property
    def usage(self) -> float:
        """Share of the blocks that sequences use, 0 to 1."""
        return 1 - len(self._free) / self.blocks

    def matched(self, sequence: Sequence) -> int:
        """Number of leading blocks of the sequence that a lookup finds."""
        limit = min((len(sequence.tokens) - 1) // self.block_size, len(sequence.hashes))
        holder = self._holder
        for index in range(limit):
            if sequence.hashes[index] not in holder:
                return index
        return max(limit, 0)

    def admit(self, sequence: Sequence) -> int | None:
        """Allocate blocks for all tokens of a sequence that has none yet.

        Returns the number of its tokens that are cached; None: there is no room, and nothing has
        changed.
        """
        hits = [self._holder[h] for h in sequence.hashes[: self.matched(sequence)]]
        needed = self._blocks_for(len(sequence.tokens)) - len(hits)
        references = self._references
        revived = [block for block in hits if not references[block]]
        if needed > len(self._free) - len(revived):
            return None
        for block in revived:
            del self._free[block]
        for block in hits:
            references[block] += 1
        sequence.table = hits + self._take(needed)
        sequence.registered = len(hits)
        return len(hits) * self.block_size

    def grow(self, sequence: Sequence) -> bool:
        """Allocate blocks for an admitted sequence's new tokens; False: no room, nothing changed."""
        needed = self._blocks_for(len(sequence.tokens)) - len(sequence.table)
        if needed > len(self._free):
            return False
        sequence.table += self._take(needed)
        return True

    def register(self, sequence: Sequence, computed: int) -> None:
        """Cache the blocks that the first `computed` tokens fill."""
        full = computed // self.block_size
        first = sequence.registered
        if full <= first:
            return
        size = self.block_size
        raw = sequence.tokens[first * size : full * size].tobytes()
        width = size * sequence.tokens.itemsize
        parent = sequence.hashes[first - 1] if first else None
        stored_from = first
        for index in range(first, full):
            block_hash = sequence.hashes[index]
            block = sequence.table[index]
            if block_hash in self._holder and not self._repeat_stores:
                self._share_cached(sequence, index)
                self._queue_stored(sequence, stored_from, index)
                stored_from = index + 1
            else:
                offset = (index - first) * width
                self._contents[block] = (block_hash, raw[offset : offset + width], parent)
                if self._holder.setdefault(block_hash, block) != block:
                    self._copies.setdefault(block_hash, []).append(block)
            parent = block_hash
        self._queue_stored(sequence, stored_from, full)
        sequence.registered = full

    def release(self, sequence: Sequence) -> None:
        """Free a sequence's blocks, last first; their content stays cached."""
        references = self._references
        for block in reversed(sequence.table):
            references[block] -= 1
            if not references[block]:
                self._free[block] = None
        sequence.table = []
        sequence.registered = 0

    def reset(self) -> bool:
        """Clear the cache; False, with nothing changed, while a sequence uses blocks."""
        if len(self._free) != self.blocks:
            return False
        self._contents = [None] * self.blocks
        self._holder.clear()
        self._copies.clear()
        self._events.append(AllBlocksCleared())
        return True

    def take_events(self) -> list[CacheEvent]:
        """The events since the last call, in order."""
        events, self._events = self._events, []
        return events

    def cached(self) -> Iterator[_Content]:
        """Every cached block once: hash, tokens (u32 little-endian), parent's hash."""
        for block in self._holder.values():
            content = self._contents[block]
            if content is not None:
                yield content

    def _blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.block_size)

    def _take(self, count: int) -> list[int]:
        taken: list[int] = []
        for _ in range(count):
            block, _none = self._free.popitem(last=False)
            content = self._contents[block]
            if content is not None:
                self._evict(block, content[0])
            self._references[block] = 1
            taken.append(block)
        return taken

    def _evict(self, block: int, block_hash: int) -> None:
        self._contents[block] = None
        copies = self._copies.get(block_hash)
        if copies is None:
            del self._holder[block_hash]
        else:
            if self._holder[block_hash] == block:
                self._holder[block_hash] = copies.pop(0)
            else:
                copies.remove(block)
            if not copies:
                del self._copies[block_hash]
        self.evictions += 1
        self._events.append(BlockRemoved([block_hash], MEDIUM, group_idx=GROUP))

    def _share_cached(self, sequence: Sequence, index: int) -> None:
        """Use the cached block instead of the sequence's own, which becomes the next free one."""
        own = sequence.table[index]
        cached = self._holder[sequence.hashes[index]]
        if not self._references[cached]:
            del self._free[cached]
        self._references[cached] += 1
        sequence.table[index] = cached
        self._references[own] = 0
        self._free[own] = None
        self._free.move_to_end(own, last=False)

    def _queue_stored(self, sequence: Sequence, first: int, end: int) -> None:
        if first == end:
            return
        size = self.block_size
        key = sequence.key
        self._events.append(
            BlockStored(
                block_hashes=sequence.hashes[first:end],
                parent_block_hash=sequence.hashes[first - 1] if first else None,
                token_ids=sequence.tokens[first * size : end * size].tolist(),
                block_size=size,
                lora_id=key.lora_id,
                medium=MEDIUM,
                lora_name=key.lora_name,
                extra_keys=key.extra_keys(first, end),
                group_idx=GROUP,
            )
        )
