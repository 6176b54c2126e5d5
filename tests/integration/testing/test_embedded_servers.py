"""Embedded servers, started by a process that dies."""

import asyncio
import os
import sys

import pytest

from tests.brokers import skip_without_kafka


@pytest.mark.parametrize(
    ("module", "name"), [("valkey", "EmbeddedValkey"), ("kafka", "EmbeddedKafka")]
)
async def test_a_server_dies_with_its_starter(module: str, name: str) -> None:
    if module == "kafka":
        skip_without_kafka()
    code = (
        f"import time\nfrom kvatlas_testing.{module} import {name}\n"
        f"server = {name}()\nserver.start()\nprint(server.pid, flush=True)\ntime.sleep(60)"
    )
    starter = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE
    )
    assert starter.stdout is not None
    server = os.pidfd_open(int(await starter.stdout.readline()))
    try:
        gone = asyncio.Event()
        asyncio.get_running_loop().add_reader(server, gone.set)
        starter.kill()
        await starter.wait()
        async with asyncio.timeout(10):
            await gone.wait()
        asyncio.get_running_loop().remove_reader(server)
    finally:
        os.close(server)
