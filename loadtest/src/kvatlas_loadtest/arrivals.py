"""Computes the time at which each request of a trace is sent.

Published traces often record arrivals in steps of seconds, so that dozens of requests share one
timestamp. Sent that way, open loop, they would measure the step and not the router. So the requests
of one step are spread evenly over the time to the next; then all times are compressed.
"""

import random
from collections.abc import Sequence
from itertools import pairwise
from statistics import median


def smooth_arrivals(timestamps_ms: Sequence[float], *, rng: random.Random) -> list[float]:
    """Spread requests that share a timestamp evenly over the step that begins there.

    A step ends at the next timestamp, but lasts no longer than the median one, so that a burst
    before a pause stays a burst. Each step gets one random phase. A request that is alone at its
    timestamp keeps it. If all share one timestamp, the step is a second per request.

    Args:
        timestamps_ms: arrivals, sorted.
        rng: source of the phases.

    Returns:
        One arrival per request, sorted, in milliseconds from the first timestamp.
    """
    if not timestamps_ms:
        return []
    origin = timestamps_ms[0]
    steps = sorted(set(timestamps_ms))
    gaps = [after - before for before, after in pairwise(steps)]
    gap_usual = median(gaps) if gaps else 1_000.0 * len(timestamps_ms)
    width = dict(zip(steps, [min(gap, gap_usual) for gap in gaps] + [gap_usual], strict=True))
    sizes: dict[float, int] = {}
    for timestamp in timestamps_ms:
        sizes[timestamp] = sizes.get(timestamp, 0) + 1
    arrivals: list[float] = []
    for step, size in sizes.items():
        phase = rng.random() if size > 1 else 0.0
        arrivals += [step - origin + width[step] * (i + phase) / size for i in range(size)]
    return arrivals


def compress(arrivals_ms: Sequence[float], *, speedup: float) -> list[float]:
    """Arrivals `speedup` times as fast, in seconds from the start of the run."""
    return [arrival / 1_000 / speedup for arrival in arrivals_ms]


def speedup_for(arrivals_ms: Sequence[float], *, rate: float) -> float:
    """The speed-up at which `rate` requests per second are sent on average."""
    recorded_s = arrivals_ms[-1] / 1_000 if arrivals_ms else 0.0
    return recorded_s * rate / len(arrivals_ms) if recorded_s > 0 else 1.0
