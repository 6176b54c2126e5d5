"""How long a stream waits and how much it holds, what it counts, and why a life of it ends."""

import enum
from dataclasses import dataclass, field


class LifeEnd(enum.StrEnum):
    """Why what was followed so far cannot be continued; closed, for it labels a counter."""

    RESTARTED = "engine_restarted"
    HISTORY_GONE = "history_gone"
    GAP_NOT_RECOVERED = "gap_not_recovered"
    """Messages are missing and there is no one to ask: no replay endpoint, or it does not answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamTiming:
    """How long to wait, in seconds, and how much to hold."""

    replay_timeout_s: float = 2.0
    """Without any reply for so long, an answer is taken as lost."""
    idle_s: float = 5.0
    """After so long without a message, ask whether the last ones were lost."""
    attempts_max: int = 3
    """Unanswered questions in a row after which the replay endpoint counts as dead; answers in a
    row that bring nothing new after which a gap counts as lost."""
    rest_s: float = 0.001
    """After a read the next one is so long away, so that a burst is read many messages at a time; what
    comes alone is read at once."""
    buffer_messages_max: int = 10_000
    buffer_bytes_max: int = 64 << 20


@dataclass(slots=True)
class StreamCounters:
    """What happened so far; read by metrics."""

    messages: int = 0
    duplicates: int = 0
    gaps: int = 0
    holes: int = 0
    replays: int = 0
    replay_timeouts: int = 0
    buffer_drops: int = 0
    lives_ended: dict[LifeEnd, int] = field(default_factory=dict[LifeEnd, int])
