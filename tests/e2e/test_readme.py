"""The README's "Run it for real" works as printed: its block is run by a shell, command by command.

Three things differ from a reader's machine: ports are free ones, `redis-server` is the embedded
Valkey, and `vllm serve` is the mock engine. Everything else is the printed text.
"""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from kvatlas_testing.valkey import server_program

REPOSITORY = Path(__file__).parents[2]
STOPPED_WITHIN_S = 20.0

VLLM = """#!{python}
import json, os, sys
serve, model, port_flag, port, events_flag, events = sys.argv[1:]
assert (serve, port_flag, events_flag) == ("serve", "--port", "--kv-events-config")
config = json.loads(events)
assert config["enable_kv_cache_events"] and config["publisher"] == "zmq"
os.execvp("kvatlas", [
    "kvatlas", "mock-engine", "--listen", f"127.0.0.1:{{port}}", "--model", model,
    "--events", config["endpoint"], "--replay", config["replay_endpoint"],
    "--topic", config["topic"],
])
"""


def first_block() -> str:
    section = (REPOSITORY / "README.md").read_text().split("\n## Run it for real\n")[1]
    found = re.search(r"^```bash\n(.*?)^```$", section, re.DOTALL | re.MULTILINE)
    assert found is not None
    return found[1]


def with_free_ports(block: str) -> str:
    """The block with each port that it names replaced by a free one, wherever it stands."""
    named = sorted(set(re.findall(r"(?::|--port )(\d{4})\b", block)))
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in named]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        free = {port: str(s.getsockname()[1]) for port, s in zip(named, sockets, strict=True)}
    return re.sub(r"(:|--port )(\d{4})\b", lambda found: found[1] + free[found[2]], block)


def programs(folder: Path) -> Path:
    """A folder with the `vllm` and the `redis-server` that the block starts."""
    folder.mkdir()
    (folder / "redis-server").symlink_to(server_program())
    (folder / "vllm").write_text(VLLM.format(python=sys.executable))
    (folder / "vllm").chmod(0o755)
    return folder


@contextmanager
def running(script: str, path: Path, output: Path) -> Generator[subprocess.Popen[bytes]]:
    """The script in a process group of its own; the whole group ends with the context."""
    environment = {**os.environ, "PATH": f"{path}:{os.environ['PATH']}"}
    with output.open("wb") as stdout, (output.parent / "stderr").open("wb") as stderr:
        process = subprocess.Popen(
            ["bash", "-e", "-c", script],
            cwd=REPOSITORY,
            env=environment,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
            deadline = time.monotonic() + STOPPED_WITHIN_S
            while time.monotonic() < deadline:
                process.poll()
                os.killpg(process.pid, 0)  # raises once the group is empty
                time.sleep(0.05)
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def test_the_block_runs_as_printed_and_its_second_request_hits(tmp_path: Path) -> None:
    script, output = with_free_ports(first_block()), tmp_path / "stdout"
    with running(script, programs(tmp_path / "bin"), output) as process:
        status = process.wait(timeout=100)
    said = output.read_text()
    assert status == 0, said + (tmp_path / "stderr").read_text()[-4000:]
    reasons = re.findall(r"^x-kvatlas-reason: ([a-z-]+)", said, re.MULTILINE)
    depths = [int(depth) for depth in re.findall(r"^x-kvatlas-depth: (\d+)", said, re.MULTILINE)]
    assert reasons == ["no-match", "kv-match"]
    assert depths[0] == 0 < depths[1]
    assert script.rstrip().splitlines()[-1].startswith("kvatlas verify ")
