"""One function per measurement. Each measures one router and returns its figures."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kvatlas_loadtest.bench.frontend import figures
from kvatlas_loadtest.bench.frontend.chats import Chats
from kvatlas_loadtest.bench.frontend.figures import Figure, Value
from kvatlas_loadtest.bench.frontend.load import LoadGenerator, Result
from kvatlas_loadtest.bench.frontend.routers import KVATLAS, Router
from kvatlas_loadtest.bench.processes import cpu_s, rss_bytes, tree_of
from kvatlas_loadtest.bench.rows import Setting
from kvatlas_loadtest.fleet import read_metrics
from kvatlas_loadtest.supervisor import FleetError, Process

CHUNK_INTERVAL_MS = 20.0
LOAD_S = 3.0
_SHORT_RATE = 200  # requests per second beside a big body
_BIG_PAUSE_MS = 500
_OPEN_CONNECTIONS = ("--connections", 256)


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured."""

    texts: int = 64
    short_tokens: int = 500
    long_tokens: int = 8_000
    rounds: int = 400
    warm_up: int = 100
    repeats: int = 3
    seconds: float = LOAD_S
    connections: int = 32
    chunk_streams: int = 128
    burst_streams: int = 1_000
    events: int = 100
    decisions: int = 20_000
    after_burst_s: float = 2.0


QUICK = Size(
    texts=4,
    long_tokens=1_000,
    rounds=10,
    warm_up=5,
    repeats=1,
    seconds=0.2,
    connections=4,
    chunk_streams=4,
    burst_streams=8,
    events=5,
    decisions=64,
    after_burst_s=0.1,
)


@dataclass(frozen=True, slots=True)
class Bench:
    """Everything that a measurement needs besides the router."""

    size: Size
    chats: Chats
    load: LoadGenerator
    engines: Process

    @property
    def addresses(self) -> Sequence[str]:
        """The engines' addresses."""
        return self.engines.address().split()


async def rss_idle(router: Router) -> list[Value]:
    """Resident memory after a single request."""
    return [Value(figures.RSS_IDLE, _rss_mib(router))]


async def added(bench: Bench, router: Router) -> list[Value]:
    """One connection: requests through the router and straight to an engine, in turns."""
    values: list[Value] = []
    for requests, p50, p99 in (
        (bench.chats.short, figures.ADDED_P50_SHORT, figures.ADDED_P99_SHORT),
        (bench.chats.long, figures.ADDED_P50_LONG, figures.ADDED_P99_LONG),
    ):
        result = await bench.load.run(
            "turns",
            router.address,
            requests,
            *("--engines", ",".join(bench.addresses)),
            *("--rounds", bench.size.rounds, "--warm-up", bench.size.warm_up),
        )
        _check_routing(router, result)
        routed, direct = result.first_event, result.direct
        for figure, through, straight in (
            (p50, routed.p50, direct.p50),
            (p99, routed.p99, direct.p99),
        ):
            settings = {"direct_ms": round(straight, 3), "requests": result.requests}
            values.append(Value(figure, max(0.0, through - straight), settings))
    return values


async def requests_per_second(
    bench: Bench, router: Router, figure: Figure, requests: Path
) -> list[Value]:
    """A closed loop over several connections, after a short one that is not counted."""
    connections = ("--connections", bench.size.connections)
    warm_s = bench.size.seconds / 5
    await bench.load.run("closed", router.address, requests, *connections, "--seconds", warm_s)
    stages = await _stage_sums_s(router)
    used_s, engines_s = _cpu_s(router), cpu_s(bench.engines)
    result = await bench.load.run(
        "closed", router.address, requests, *connections, "--seconds", bench.size.seconds
    )
    _check_routing(router, result, are_matches_expected=figure is figures.REQUESTS_SESSION)
    used_s, engines_s = _cpu_s(router) - used_s, cpu_s(bench.engines) - engines_s
    settings: dict[str, Setting] = {
        "connections": bench.size.connections,
        "router_cpu": f"{used_s / result.seconds:.0%}",
        "load_and_engines_cpu": f"{(engines_s + result.cpu_s) / result.seconds:.0%}",
        "requests_per_cpu_s": round(result.requests / used_s),
    }
    after = await _stage_sums_s(router)
    for stage, sum_s in after.items():
        settings[f"{stage}_us"] = round((sum_s - stages[stage]) / result.requests * 1e6)
    return [Value(figure, result.requests / result.seconds, settings)]


async def _stage_sums_s(router: Router) -> dict[str, float]:
    """Time that kvatlas spent in each stage of routing so far, waiting included; none for peers."""
    if router.name != KVATLAS:
        return {}
    samples = await read_metrics([router.process.address("admin")])
    return {
        sample.labels["stage"]: sample.value
        for sample in samples
        if sample.name == "kvatlas_frontend_routing_seconds_sum"
    }


async def chunk_cpu(bench: Bench, router: Router) -> list[Value]:
    """Processor time of long answers less that of as many short ones, over the chunks between."""
    streams = bench.size.chunk_streams
    flags = ("--streams", streams)
    used_s: list[float] = []
    for requests in (bench.chats.short, bench.chats.short, bench.chats.streams):
        before_s = _cpu_s(router)
        await bench.load.run("burst", router.address, requests, *flags)
        used_s.append(_cpu_s(router) - before_s)
    chunks = streams * (bench.size.events - 1)
    settings = {"streams": streams, "chunks": chunks, "interval_ms": CHUNK_INTERVAL_MS}
    return [Value(figures.CHUNK_CPU, max(0.0, used_s[2] - used_s[1]) / chunks * 1e6, settings)]


async def half_load(bench: Bench, router: Router, requests_per_s: float) -> list[Value]:
    """Random arrivals at half of the router's own maximum; times count from when one is due."""
    rate = requests_per_s / 2
    flags = ("--rate", rate, "--seconds", bench.size.seconds, *_OPEN_CONNECTIONS)
    result = await bench.load.run("open", router.address, bench.chats.long, *flags)
    straight = await bench.load.run("open", bench.addresses[0], bench.chats.long, *flags)
    settings: dict[str, Setting] = {
        "rate": round(rate),
        "requests": result.requests,
        "straight_p99_ms": round(straight.first_event.p99, 3),
    }
    if fallbacks := _fallbacks(result):
        settings["fallbacks"] = fallbacks
    return [
        Value(figures.TTFT_P50, result.first_event.p50, settings),
        Value(figures.TTFT_P99, result.first_event.p99, settings),
    ]


async def burst(bench: Bench, router: Router) -> list[Value]:
    """Many streams at once: memory afterwards, and how long the last one took."""
    size = bench.size
    idle_mib = _rss_mib(router)
    result = await bench.load.run(
        "burst",
        router.address,
        bench.chats.streams,
        *("--streams", size.burst_streams),
        is_checked=False,
    )
    await asyncio.sleep(size.after_burst_s)
    ideal_s = (size.events - 1) * CHUNK_INTERVAL_MS / 1e3
    settings: dict[str, Setting] = {"streams": size.burst_streams, "events": size.events}
    if result.errors:
        settings |= {"errors": result.errors, "first_error": result.first_error[:80]}
    return [
        Value(
            figures.RSS_BURST,
            _rss_mib(router),
            settings | {"before_mib": round(idle_mib)},
            target=1.2 * idle_mib,
        ),
        Value(
            figures.BURST_TIME,
            result.last_byte.max / 1e3 / ideal_s,
            settings | {"ideal_s": ideal_s, "ttft_p99_ms": round(result.first_event.p99)},
        ),
    ]


async def big_body(bench: Bench, router: Router) -> list[Value]:
    """Short requests at a steady rate, alone and beside bodies of 31 MB."""
    address = router.address
    alone = await _short_p99(bench, address)
    beside, bodies = await _short_p99_beside(bench, address)
    straight_alone = await _short_p99(bench, bench.addresses[0])
    straight_beside, _ = await _short_p99_beside(bench, bench.addresses[0])
    settings: dict[str, Setting] = {
        "alone_ms": round(alone, 2),
        "beside_ms": round(beside, 2),
        "bodies": bodies.requests,
        "body_ms": round(bodies.first_event.p50),
        "straight_to_engine_ms": round(straight_beside - straight_alone, 2),
    }
    if bodies.errors:
        settings |= {"errors": bodies.errors, "first_error": bodies.first_error[:80]}
    return [Value(figures.BIG_BODY, max(0.0, beside - alone), settings)]


async def _short_p99(bench: Bench, address: str) -> float:
    flags = ("--rate", _SHORT_RATE, "--seconds", bench.size.seconds, *_OPEN_CONNECTIONS)
    result = await bench.load.run("open", address, bench.chats.short, *flags)
    return result.first_event.p99


async def _short_p99_beside(bench: Bench, address: str) -> tuple[float, Result]:
    flags = ("--pause-ms", _BIG_PAUSE_MS, "--seconds", bench.size.seconds)
    p99, bodies = await asyncio.gather(
        _short_p99(bench, address),
        bench.load.run("closed", address, bench.chats.big, *flags, is_checked=False),
    )
    return p99, bodies


def _check_routing(router: Router, result: Result, *, are_matches_expected: bool = False) -> None:
    """Check that kvatlas routed by matches: a fallback is faster, and is no figure.

    Raises:
        FleetError: it routed otherwise.
    """
    if router.name != KVATLAS:
        return
    if _fallbacks(result) or "none" in result.reasons:
        raise FleetError(f"kvatlas bench: the frontend routed by {dict(result.reasons)}")
    if are_matches_expected and not result.reasons.get("kv-match"):
        raise FleetError("kvatlas bench: the frontend found no match for prompts that are held")


def _fallbacks(result: Result) -> int:
    return sum(count for reason, count in result.reasons.items() if reason.startswith("fallback"))


def _cpu_s(router: Router) -> float:
    return sum(cpu_s(pid) for pid in tree_of(router.process))


def _rss_mib(router: Router) -> float:
    return sum(rss_bytes(pid) for pid in tree_of(router.process)) / 2**20
