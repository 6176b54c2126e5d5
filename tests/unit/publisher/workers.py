"""Workers as tests need them: contexts, headers."""

import dataclasses
import time
from collections.abc import Callable
from typing import Any

from kvatlas_engines.endpoint import Endpoint
from kvatlas_events import Header, WorkerKey
from kvatlas_publisher.context import ProcessContext, WorkerContext
from kvatlas_publisher.mirror import Mirror
from kvatlas_publisher.settings import EngineSpec, PublisherSettings
from kvatlas_publisher.state.state_dir import StateDir

SPEC = EngineSpec(
    engine="vllm",
    events=Endpoint.parse("tcp://127.0.0.1:1"),
    replay=Endpoint.parse("tcp://127.0.0.1:2"),
    engine_url=None,
    advertised_url="",
    worker_id=7,
    dp_rank=1,
    model="m",
    block_size=1,
    cell="c",
    logs=(),
    role="",
    labels={},
)


def worker_context(
    state: StateDir | None = None,
    *,
    now_unix_us: Callable[[], int] = lambda: time.time_ns() // 1_000,
    spec: EngineSpec = SPEC,
    **changes: Any,  # noqa: ANN401 - fields of EngineSpec, ProcessContext or PublisherSettings
) -> WorkerContext:
    def taken(kind: type[Any]) -> dict[str, Any]:
        names = {field.name for field in dataclasses.fields(kind)}
        return {name: changes.pop(name) for name in list(changes) if name in names}

    spec = dataclasses.replace(spec, **taken(EngineSpec))
    shared: dict[str, Any] = {"instance_id": 6, "advertised_rpc": ""}
    process = ProcessContext(**(shared | taken(ProcessContext)))
    return WorkerContext(
        spec, PublisherSettings(**changes), process, state, now_unix_us=now_unix_us
    )


def header(worker: WorkerKey, epoch: int) -> Header:
    return Header(
        worker=worker,
        epoch=epoch,
        instance_id=4,
        cell="c",
        model="m",
        block_size=1,
        hash_contract="h",
        publisher="p",
    )


def empty_mirror() -> Mirror:
    return Mirror(engine="vllm", block_size=1, blocks_max=1_000_000)
