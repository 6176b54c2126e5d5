"""The native channel's thread does no harm where processes end or fork."""

import subprocess
import sys

import pytest

EXIT_WITH_A_CALL_UNDER_WAY = """
import asyncio, socket
from kvatlas_client import AsyncIndexer

async def main():
    silent = socket.create_server(("127.0.0.1", 0))
    client = AsyncIndexer([f"127.0.0.1:{silent.getsockname()[1]}"], deadline_ms=60_000)
    asyncio.ensure_future(client.find_matches(chunk_hashes=[1]))
    await asyncio.sleep(0)
    print("asked", flush=True)

asyncio.run(main())
"""

EXIT_WITH_A_THREAD_WAITING = """
import socket, threading
from kvatlas_client import Indexer

silent = socket.create_server(("127.0.0.1", 0))
client = Indexer([f"127.0.0.1:{silent.getsockname()[1]}"], deadline_ms=60_000)
threading.Thread(target=client.find_matches, kwargs={"chunk_hashes": [1]}, daemon=True).start()
connection, _ = silent.accept()
print("asked", flush=True)
"""

FORK_WITH_A_CONNECTION = """
import os, subprocess, sys
from kvatlas_client import Indexer

SERVER = '''
import sys
from kvatlas_native import Cell, CellServer
cell = Cell(cell="c", model="m", block_size=16, hash_contract="h", replica_id="r", version="v",
    lease_ms=1000, hold_back_batches_max=8, hold_back_ms=100, memory_bytes_max=1 << 30)
cell.set_ready(True)
server = CellServer(cell, "127.0.0.1", 0, threads=1)
print(server.address[1], flush=True)
sys.stdin.read()
'''
server = subprocess.Popen([sys.executable, "-c", SERVER], stdin=subprocess.PIPE,
                          stdout=subprocess.PIPE, text=True)
address = "127.0.0.1:" + server.stdout.readline().strip()
client = Indexer([address], hash_contract="h", deadline_ms=30_000)
client.find_matches(chunk_hashes=[1])
child = os.fork()
if child == 0:
    for _ in range(3):
        client.find_matches(chunk_hashes=[1])
    os._exit(7)
_, status = os.waitpid(child, 0)
assert os.waitstatus_to_exitcode(status) == 7, status
client.find_matches(chunk_hashes=[1])
server.stdin.close()
server.wait()
server.stdout.close()
print("asked", flush=True)
"""


@pytest.mark.parametrize(
    "script",
    [EXIT_WITH_A_CALL_UNDER_WAY, EXIT_WITH_A_THREAD_WAITING, FORK_WITH_A_CONNECTION],
    ids=["exit-with-a-call-under-way", "exit-with-a-thread-waiting", "fork-with-a-connection"],
)
def test_a_process_ends_as_if_there_were_no_native_thread(script: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "asked\n", "")
