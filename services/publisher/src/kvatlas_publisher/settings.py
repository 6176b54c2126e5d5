"""The settings of `kvatlas publisher`.

The flags describe one engine rank. A file may list several under `engines:`. A setting
that an entry leaves out is taken from the top level.
"""

import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, PlainValidator, model_validator

from kvatlas_chassis import HostPort, ServiceSettings, Settings, SettingsError
from kvatlas_engines import EngineName
from kvatlas_engines.endpoint import Endpoint
from kvatlas_events import LOG_SERVER_URLS, LogWriter, WorkerKey, open_writers


def _endpoint(value: object) -> Endpoint:
    if isinstance(value, Endpoint):
        return value
    return Endpoint.parse(str(value))


def _connected_endpoint(value: object) -> Endpoint:
    endpoint = _endpoint(value)
    if endpoint.binds:
        raise ValueError(f"{endpoint} names no host: give the address where the engine answers")
    return endpoint


def _base_url(value: object) -> str:
    parts = urlsplit(value) if isinstance(value, str) else None
    if parts is None or parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ValueError(f"{value!r} is not http://HOST:PORT")
    return str(value).rstrip("/")


WorkerId = Annotated[int, Field(ge=0, lt=1 << 64)]
DpRank = Annotated[int, Field(ge=0, lt=1 << 32)]
BlockSize = Annotated[int, Field(ge=1, le=1 << 16)]
Events = Annotated[Endpoint, PlainValidator(_endpoint)]
Replay = Annotated[Endpoint, PlainValidator(_connected_endpoint)]
Url = Annotated[str, PlainValidator(_base_url)]


class EngineSettings(Settings):
    """One entry of `engines:`; None and empty values are taken from the top level."""

    engine: EngineName | None = None
    events: Events
    replay: Replay | None = None
    engine_url: Url | None = None
    advertise_engine_url: Url | None = None
    worker_id: WorkerId
    dp_rank: DpRank | None = None
    model: str | None = None
    block_size: BlockSize | None = None
    cell: str | None = None
    log: tuple[str, ...] = ()
    role: Literal["", "prefill", "decode"] | None = None
    labels: dict[str, str] = Field(default_factory=dict[str, str])


class PublisherSettings(ServiceSettings):
    """Settings of `kvatlas publisher`."""

    engine: EngineName = Field(
        default="vllm", description="kind of engine that publishes on --events"
    )
    events: Events | None = Field(
        default=None,
        description="address where the engine publishes its KV-cache events, tcp://H:P or "
        "ipc://PATH; with a wildcard host (tcp://*:P) the publisher listens there, and engines "
        "connect (required)",
    )
    replay: Replay | None = Field(
        default=None,
        description="address where the engine replays lost events (default: it replays none)",
    )
    engine_url: Url | None = Field(
        default=None,
        description="HTTP URL of the engine, to read its load, capacity, model and health",
    )
    advertise_engine_url: Url | None = Field(
        default=None,
        description="HTTP URL at which frontends reach the engine (default: --engine-url)",
    )
    worker_id: WorkerId | None = Field(
        default=None, description="id of this engine, unique in its cell (required)"
    )
    dp_rank: DpRank | None = Field(
        default=None,
        description="data-parallel rank of this engine (default: the rank that its events name)",
    )
    model: str | None = Field(default=None, description="model of the whole cell (required)")
    block_size: BlockSize | None = Field(
        default=None, description="tokens per KV-cache block in the whole cell (required)"
    )
    cell: str = Field(
        default="default",
        min_length=1,
        description="name of the cell: all engines of one model that share an index",
    )
    log: tuple[str, ...] = Field(
        default=(),
        description="URL of an event log to publish to (required); several logs get the same events: "
        f"grpc://H:P[,H:P...] (directly to indexers), {LOG_SERVER_URLS}",
    )
    role: Literal["", "prefill", "decode"] = Field(
        default="", description="role of the engine, if it does only one of the two (default: both)"
    )
    labels: dict[str, str] = Field(
        default_factory=dict[str, str], description="labels of the engine, for routing policies"
    )
    engines: tuple[EngineSettings, ...] = Field(
        default=(), description="engine ranks to follow, instead of --events and --worker-id"
    )
    state_dir: Path | None = Field(
        default=None,
        description="directory of the state that outlives a restart: per engine rank a file with the "
        "highest epoch, and one with the mirror; publishers may share it. Without it, a clock that was "
        "set back can begin an older epoch, and a restart loses the blocks that the engine does not "
        "replay",
    )
    checkpoint_s: float = Field(
        default=30.0,
        ge=0,
        description="seconds between two writes of the mirror to --state-dir; 0: only at the end",
    )
    listen: HostPort = Field(
        default=HostPort("127.0.0.1", 0),
        description="address of the Publisher RPC, which indexers call for records that they lost; "
        "port 0: any free port",
    )
    advertise: HostPort | None = Field(
        default=None, description="address at which indexers reach --listen (default: --listen)"
    )
    heartbeat_s: float = Field(
        default=1.0, gt=0, le=60, description="seconds between two heartbeats"
    )
    engine_gone_s: float = Field(
        default=10.0,
        gt=0,
        description="seconds after which an engine counts as gone, if neither its event connection "
        "nor its HTTP works",
    )
    flush_s: float = Field(
        default=0.003,
        ge=0,
        le=1,
        description="seconds that an event may wait to share a record with later ones",
    )
    mirror_blocks_max: int = Field(
        default=4_000_000,
        ge=1,
        description="blocks that the mirror of an engine rank may hold; further ones are refused "
        "and counted",
    )
    replay_bytes_max: int = Field(
        default=8 << 20,
        ge=0,
        description="bytes of each engine rank's newest records that are kept for indexers that "
        "lost some",
    )

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if self.engines and (self.events is not None or self.worker_id is not None):
            raise ValueError(
                "--events and --worker-id cannot be used with engines:, which names them in each entry"
            )
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSpec:
    """One engine rank to follow, with its entry and the top level combined."""

    engine: EngineName
    events: Endpoint
    replay: Endpoint | None
    engine_url: str | None
    advertised_url: str
    worker_id: int
    dp_rank: int | None
    model: str
    block_size: int
    cell: str
    logs: tuple[str, ...]
    role: str
    labels: dict[str, str]

    @property
    def direct_indexers(self) -> list[str]:
        """Addresses (host:port) of the indexers that get the records directly."""
        direct = [url.removeprefix("grpc://") for url in self.logs if url.startswith("grpc://")]
        return [address for url in direct for address in url.rstrip("/").split(",")]

    def open_writers(self) -> list[LogWriter]:
        """Open every destination of this rank's records; nothing is connected yet.

        Raises:
            SettingsError: a URL that cannot be used.
        """
        try:
            return [each for url in self.logs for each in open_writers(url, cell=self.cell)]
        except ValueError as error:
            raise SettingsError(f"kvatlas publisher: --log: {error}") from None


def engine_specs(settings: PublisherSettings) -> list[EngineSpec]:
    """Return the engine ranks to follow.

    Raises:
        SettingsError: something required is missing, or two entries are one worker.
    """
    specs = [_spec(settings, entry) for entry in settings.engines or (settings,)]
    seen: set[WorkerKey] = set()
    for spec in specs:
        if spec.dp_rank is None:
            continue  # its events will name it
        worker = WorkerKey(spec.worker_id, spec.dp_rank)
        if worker in seen:
            raise SettingsError(f"kvatlas publisher: engines: worker {worker} is listed twice")
        seen.add(worker)
    return specs


def _spec(settings: PublisherSettings, entry: EngineSettings | PublisherSettings) -> EngineSpec:
    """Combine an entry with the top level, which is the entry if only flags are used."""
    model = entry.model or settings.model
    block_size = entry.block_size or settings.block_size
    logs = entry.log or settings.log
    events, worker_id = entry.events, entry.worker_id
    if events is None or worker_id is None or not model or not block_size or not logs:
        required = {
            "--events": events,
            "--worker-id": worker_id,
            "--model": model,
            "--block-size": block_size,
            "--log": logs,
        }
        missing = [flag for flag, value in required.items() if value in {None, "", ()}]
        raise SettingsError(
            "kvatlas publisher: " + "; ".join(f"{flag} is required" for flag in missing)
        )
    return EngineSpec(
        engine=entry.engine or settings.engine,
        events=events,
        replay=entry.replay,
        engine_url=entry.engine_url,
        advertised_url=entry.advertise_engine_url or entry.engine_url or "",
        worker_id=worker_id,
        dp_rank=entry.dp_rank,
        model=model,
        block_size=block_size,
        cell=entry.cell or settings.cell,
        logs=logs,
        role=settings.role if entry.role is None else entry.role,
        labels={**settings.labels, **entry.labels},
    )


def new_instance_id() -> int:
    """Return a random number that distinguishes this process from every other publisher."""
    return uuid.uuid4().int & (2**64 - 1)
