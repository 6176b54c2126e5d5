"""The cost of several processes: requests per CPU-second of `--processes 2` over one process.

Both run on the measured core, in turns. So the figure is what sharing costs, not what a second core
brings: processor time of the supervisor and of all processes, per request.
"""

from statistics import median

from kvatlas_loadtest.bench.frontend import measures
from kvatlas_loadtest.bench.frontend.figures import BENCH, REQUESTS_SHORT
from kvatlas_loadtest.bench.frontend.measures import Bench
from kvatlas_loadtest.bench.frontend.routers import KVATLAS, Router
from kvatlas_loadtest.bench.rows import Row, Setting

PROCESSES = 2
TARGET = 0.9


async def cost_of_processes(bench: Bench, one: Router, several: Router) -> Row:
    """Alternate closed loops of short prompts through both; the ratio of the medians."""
    per_cpu_s: dict[str, list[float]] = {one.name: [], several.name: []}
    for _ in range(bench.size.repeats):
        for router in (one, several):
            (value,) = await measures.requests_per_second(
                bench, router, REQUESTS_SHORT, bench.chats.short
            )
            per_cpu_s[router.name].append(float(value.settings["requests_per_cpu_s"]))
    base, value = median(per_cpu_s[one.name]), median(per_cpu_s[several.name])
    settings: dict[str, Setting] = {
        "processes": PROCESSES,
        "requests_per_cpu_s": round(value),
        "one_process": round(base),
        "connections": bench.size.connections,
    }
    figure = f"{KVATLAS}: requests a CPU-second, {PROCESSES} processes over one"
    return Row(BENCH, figure, value / base, "x", TARGET, "higher", settings)
