"""Memory that a cell takes for its index in advance."""

from tests.unit.cell.bench import Bench

KEPT = 16 << 20


def test_kept_memory_is_taken_at_once_and_stays_idle() -> None:
    bench = Bench()
    idle = 'index_bytes{part="idle"}'
    before = bench.cell.gauges()[idle]
    assert bench.cell.keep_memory(KEPT)
    assert bench.cell.gauges()[idle] - before == KEPT
    for _ in range(3):
        bench.cell.tick(bench.now_ms, log_alive=True)
    assert bench.cell.gauges()[idle] - before == KEPT
    assert bench.cell.keep_memory(0)


def test_more_memory_than_there_can_be_is_refused() -> None:
    assert not Bench().cell.keep_memory(1 << 60)
