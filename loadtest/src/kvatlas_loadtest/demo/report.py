"""Prints the demo's plan, progress and results in a terminal."""

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from kvatlas_loadtest.demo.options import Options
from kvatlas_loadtest.demo.plan import Plan
from kvatlas_loadtest.demo.replay import Progress as Told
from kvatlas_loadtest.demo.results import Summary
from kvatlas_loadtest.fleet import Fleet
from kvatlas_loadtest.trace import TOKENS_PER_ID


def print_plan(console: Console, plan: Plan, options: Options) -> None:
    """Print what will be played, and how it was scaled for this machine."""
    tokens = sum(len(request.tokens) for request in plan.requests) / len(plan.requests)
    capacity = plan.capacity
    console.print(
        f"[bold]{len(plan.requests):,} requests[/] of {plan.trace.name}"
        + (", which holds no more" if len(plan.requests) < options.requests else "")
        + f", {plan.speedup:.3g} times "
        f"as fast as recorded: {plan.lasts_s:.0f} s a policy"
    )
    console.print(
        f"prompts: {plan.tokens_per_id} tokens stand for {TOKENS_PER_ID} of the trace, "
        f"{tokens:,.0f} on the mean; answers {plan.output_scale:.3g} times shorter"
    )
    console.print(
        f"engines: {options.engines} of {capacity.blocks_per_engine:,} blocks of "
        f"{options.block_size} tokens, for {capacity.blocks_stored:,} different ones, "
        f"{plan.engine_speedup:.3g} times as fast as real ones"
        + ("" if capacity.evictions_certain else "; all fit: evictions are not certain")
    )
    console.print(
        f"hit ratio of an infinite cache {plan.infinite.ratio:.1%}, of one LRU cache as large as "
        f"the fleet {capacity.lru_ratio:.1%}"
    )


@contextmanager
def shown_progress(console: Console, policy: str, requests: int) -> Generator[Told]:
    """A progress bar of the answers; without a terminal, nothing until the end."""
    with Progress(
        TextColumn("{task.description:<14}"),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        expand=True,
    ) as progress:
        task = progress.add_task(policy, total=requests)
        yield lambda finished: progress.update(task, completed=finished)


def results_table(plan: Plan, policies: Mapping[str, Summary]) -> Table:
    """The figures of each policy. One row per figure, so that it fits a narrow terminal."""
    table = Table()
    table.add_column("", no_wrap=True)
    for policy in policies:
        table.add_column(policy, justify="right", no_wrap=True)
    summaries = list(policies.values())

    def row(name: str, values: Sequence[str], *, end_section: bool = False) -> None:
        table.add_row(name, *values, end_section=end_section)

    row("requests", [f"{s.requests:,}" for s in summaries])
    row("errors", [_bad(s.errors) for s in summaries], end_section=True)
    row("KV hit ratio", [f"[bold]{s.hits.ratio:.1%}[/]" for s in summaries])
    row("  infinite cache", [f"{plan.infinite.ratio:.1%}" for _ in summaries])
    row("  share of it", [_share(s, plan) for s in summaries])
    row("evicted blocks", [f"{s.evictions:,}" for s in summaries], end_section=True)
    for name in ("p50", "p95", "p99"):
        last = name == "p99"
        row(f"TTFT {name}, ms", [_ms(s.ttft_ms[name], 0) for s in summaries], end_section=last)
    for name in ("p50", "p99"):
        row(f"routing {name}, ms", [_ms(s.routing_ms[name], 2) for s in summaries])
    row("fallbacks to load", [_bad(s.fallbacks) for s in summaries])
    return table


def print_example_commands(console: Console, fleet: Fleet) -> None:
    """Print commands to try on the fleet that keeps running."""
    frontend = f"http://{fleet.frontends[0].address()}"
    admin = f"http://{fleet.frontends[0].address('admin')}"
    model = fleet.shape.model
    content = "-H 'Content-Type: application/json'"
    messages = '[{"role": "user", "content": "hello"}]'
    chat = f'{{"model": "{model}", "stream": true, "messages": {messages}}}'
    text = f'{{"model": "{model}", "prompt": "Once upon a time", "max_tokens": 8}}'
    console.print(f"\nthe fleet of [bold]{fleet.shape.policy}[/] stays up until Ctrl-C. Try:")
    for line in (
        f"curl {frontend}/v1/models",
        f"curl -i {frontend}/v1/completions {content} -d '{text}'",
        f"curl -N {frontend}/v1/chat/completions {content} -d '{chat}'",
        f"curl {admin}/metrics",
        f"curl http://{fleet.indexers[0].address('admin')}/metrics",
    ):
        console.print(f"  {line}", soft_wrap=True, markup=False, highlight=False)


def _share(summary: Summary, plan: Plan) -> str:
    return f"{summary.hits.ratio / plan.infinite.ratio:.0%}" if plan.infinite.hit_blocks else "-"


def _bad(count: int) -> str:
    return f"[red]{count:,}[/]" if count else "0"


def _ms(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"
