"""`kvatlas demo`: plays a trace through a fleet on this machine, once per policy; prints a table."""

import asyncio
import contextlib
import json
import signal
import sys
import tempfile
from collections.abc import Coroutine, Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

import uvloop
from rich.console import Console

from kvatlas_chassis import FatalError
from kvatlas_loadtest.demo.options import Options, read_options
from kvatlas_loadtest.demo.plan import MODEL, PREFILL_TOKEN_US, Plan, make_plan
from kvatlas_loadtest.demo.report import (
    print_example_commands,
    print_plan,
    results_table,
)
from kvatlas_loadtest.demo.results import document
from kvatlas_loadtest.demo.run import Run, play
from kvatlas_loadtest.fleet import FleetShape, running_fleet
from kvatlas_loadtest.supervisor import FleetError

INTERRUPTED = 130
"""Exit status after Ctrl-C, as in shells."""


def command(argv: Sequence[str]) -> int:
    """Run the demo; return its exit status: 0 if every run succeeded, 1 otherwise."""
    try:
        options = read_options(argv)
        plan = make_plan(options)
        with _log_folder(options) as logs:
            return uvloop.run(_until_interrupted(_demo(options, plan, logs)))
    except FatalError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_status
    except FleetError as error:
        sys.stderr.write(f"kvatlas demo: {error}\n")
        return 1


async def _until_interrupted(work: Coroutine[Any, Any, int]) -> int:
    """Run `work`; on the first SIGINT, SIGTERM or SIGHUP cancel it and let it clean up.

    A second signal ends this process at once, and the kernel then ends its children.
    """
    loop = asyncio.get_running_loop()
    task = asyncio.ensure_future(work)
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def interrupt() -> None:
        task.cancel()
        for number in numbers:
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_DFL)

    for number in numbers:
        loop.add_signal_handler(number, interrupt)
    try:
        return await task
    except asyncio.CancelledError:
        return INTERRUPTED


async def _demo(options: Options, plan: Plan, logs: Path) -> int:
    console = Console(width=None if sys.stdout.isatty() else 100)
    print_plan(console, plan, options)
    runs: dict[str, Run] = {}
    for policy in options.policies:
        status = console.status(f"{policy}: starting the fleet")
        with contextlib.ExitStack() as shown:
            shown.enter_context(status)
            async with running_fleet(
                _shape(options, plan, policy), logs / Path(policy).stem
            ) as fleet:
                shown.close()
                kill_indexer = options.kill_indexer and not runs
                runs[policy] = await play(plan, fleet, console, kill_indexer=kill_indexer)
                if policy == options.policies[-1]:
                    _report(console, options, plan, runs)
                    if options.keep:
                        print_example_commands(console, fleet)
                        await asyncio.Event().wait()
    return 0 if all(run.succeeded for run in runs.values()) else 1


def _report(console: Console, options: Options, plan: Plan, runs: Mapping[str, Run]) -> None:
    """Print the table and the remarks; write the JSON file."""
    summaries = {policy: run.summary for policy, run in runs.items()}
    console.print(results_table(plan, summaries))
    for policy, run in runs.items():
        found = [*run.remarks, *([run.agreement.sentence()] if run.agreement else [])]
        for sentence in found:
            console.print(f"{policy}: {sentence}", markup=False, highlight=False, soft_wrap=True)
        for name in run.lost:
            console.print(f"{policy}: {name} died", style="red", markup=False)
        if run.summary.first_error is not None:
            console.print(
                f"{policy}: first error: {run.summary.first_error}", style="red", markup=False
            )
    if options.logs is not None:
        console.print(f"logs of all processes: {options.logs}", highlight=False)
    if options.json is not None:
        _write(options.json, document(plan, options.engines, summaries))


def _shape(options: Options, plan: Plan, policy: str) -> FleetShape:
    return FleetShape(
        model=MODEL,
        block_size=options.block_size,
        engines=options.engines,
        blocks=plan.capacity.blocks_per_engine,
        prefill_token_us=PREFILL_TOKEN_US,
        engine_speedup=plan.engine_speedup,
        indexers=options.indexers,
        frontends=options.frontends,
        policy=policy,
        seed=options.seed,
    )


def _write(file: Path, results: Mapping[str, Any]) -> None:
    try:
        file.write_text(json.dumps(results, indent=2) + "\n")
    except OSError as error:
        raise FatalError(f"kvatlas demo: cannot write {file}: {error.strerror}") from None


@contextlib.contextmanager
def _log_folder(options: Options) -> Generator[Path]:
    """The folder for the processes' logs: `--logs`, or one that is deleted after the demo."""
    if options.logs is not None:
        yield options.logs
        return
    with tempfile.TemporaryDirectory(prefix="kvatlas-demo-") as folder:
        yield Path(folder)
