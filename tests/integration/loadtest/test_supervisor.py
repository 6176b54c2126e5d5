"""Processes are started, progress_bar, and never left behind; real ones, as every user has them."""

import asyncio
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kvatlas_loadtest.supervisor import Command, FleetError, Supervisor

READY = 'import json, sys; print(json.dumps({"ready": True, "listen": "h:1"}), flush=True); '


def python(name: str, code: str) -> Command:
    return Command(name, (sys.executable, "-c", code))


def sleeper(name: str = "sleeper") -> Command:
    return python(
        name, "print('other output'); " + READY + "sys.stdin.read(); import time\n" + LOOP
    )


LOOP = "while True: time.sleep(60)"


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def test_a_process_is_up_when_it_has_said_so_and_gone_after_the_block(tmp_path: Path) -> None:
    async with Supervisor(tmp_path) as supervisor:
        first, second = await supervisor.start([sleeper("a"), sleeper("b")])
        assert first.address() == "h:1"
        assert alive(first.pid)
        assert alive(second.pid)
        assert supervisor.ended() == []
        with pytest.raises(FleetError, match="no 'admin' in its ready line"):
            first.address("admin")
    assert not alive(first.pid)
    assert not alive(second.pid)


async def test_one_that_ends_early_is_told_by_its_last_words_and_the_others_are_ended(
    tmp_path: Path,
) -> None:
    broken = python("broken", "import sys; sys.stderr.write('why: it broke\\n'); sys.exit(3)")
    pids: list[int] = []

    async def start() -> None:
        async with Supervisor(tmp_path) as supervisor:
            (up,) = await supervisor.start([sleeper()])
            pids.append(up.pid)
            await supervisor.start([broken, sleeper("late")])

    with pytest.raises(FleetError, match=r"broken ended with status 3 .*: why: it broke"):
        await start()
    assert not any(alive(pid) for pid in pids)


async def test_one_that_never_gets_ready_is_given_up(tmp_path: Path) -> None:
    async def start() -> None:
        async with Supervisor(tmp_path, ready_timeout_s=0.2) as supervisor:
            await supervisor.start([python("mute", "import time\n" + LOOP)])

    with pytest.raises(FleetError, match="mute was not ready within"):
        await start()


async def test_one_that_ignores_the_polite_signal_is_killed(tmp_path: Path) -> None:
    stubborn = python(
        "stubborn",
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
        + READY
        + "\n"
        + LOOP,
    )
    async with Supervisor(tmp_path, grace_s=0.2) as supervisor:
        (process,) = await supervisor.start([stubborn])
    assert process.exit_status == -signal.SIGKILL


async def test_batches_end_in_reverse_order(tmp_path: Path) -> None:
    order = tmp_path / "order"

    def noting(name: str) -> Command:
        note = f"open({str(order)!r}, 'a').write({name!r}); sys.exit(0)"
        return python(
            name,
            f"import signal\ndef end(*_):\n    {note}\n"
            "signal.signal(signal.SIGTERM, end)\n" + READY + "import time\n" + LOOP,
        )

    async with Supervisor(tmp_path) as supervisor:
        for name in "abc":
            await supervisor.start([noting(name)])
    assert order.read_text() == "cba"


async def test_a_death_is_noticed(tmp_path: Path) -> None:
    async with Supervisor(tmp_path) as supervisor:
        (process,) = await supervisor.start([sleeper()])
        process.kill()
        async with asyncio.timeout(10):
            while process.exit_status is None:  # noqa: ASYNC110 - the system's to say
                await asyncio.sleep(0.01)
        assert supervisor.ended() == ["sleeper"]


def test_children_die_with_a_starter_that_is_killed(tmp_path: Path) -> None:
    starter = (
        "import asyncio, sys\n"
        "from pathlib import Path\n"
        "from kvatlas_loadtest.supervisor import Command, Supervisor\n"
        "async def main():\n"
        "    async with Supervisor(Path(sys.argv[1])) as supervisor:\n"
        "        (p,) = await supervisor.start([Command('c', (sys.executable, '-c', sys.argv[2]))])\n"
        "        print(p.pid, flush=True)\n"
        "        await asyncio.Event().wait()\n"
        "asyncio.run(main())\n"
    )
    code = READY + "import time\n" + LOOP
    with subprocess.Popen(
        [sys.executable, "-c", starter, str(tmp_path), code], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        assert alive(child)
        pidfd = os.pidfd_open(child)
        process.kill()
        process.wait()
        _wait_for_end(pidfd)


def _wait_for_end(pidfd: int) -> None:
    """A pidfd becomes readable when its process has ended."""
    readable, _, _ = select.select([pidfd], [], [], 10)
    os.close(pidfd)
    assert readable
