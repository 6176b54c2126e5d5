"""What `kvatlas publisher` can be told.

The flags describe one engine rank. A file may list several under `engines:`; each entry may leave
out what the top level says for all.
"""

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, PlainValidator, model_validator

from kvatlas_chassis import HostPort, ServiceSettings, Settings, SettingsError
from kvatlas_engines.endpoint import Endpoint
from kvatlas_events import LOG_SERVER_URLS, LogWriter, Worker, open_writers


def _endpoint(value: object) -> Endpoint:
    if isinstance(value, Endpoint):
        return value
    return Endpoint.parse(str(value))


def _connected_endpoint(value: object) -> Endpoint:
    endpoint = _endpoint(value)
    if endpoint.binds:
        raise ValueError(f"{endpoint} names no host: say where the engine answers")
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
Engine = Literal["vllm", "sglang"]


class EngineSettings(Settings):
    """One entry of `engines:`."""

    engine: Engine | None = None
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

    engine: Engine = Field(default="vllm", description="what speaks on --events")
    events: Events | None = Field(
        default=None, description="where the engine publishes; a wildcard host: where we listen"
    )
    replay: Replay | None = Field(
        default=None, description="where the engine replays what was lost"
    )
    engine_url: Url | None = Field(
        default=None, description="the engine's HTTP, for its load, its model and its health"
    )
    advertise_engine_url: Url | None = Field(
        default=None, description="where frontends reach the engine, if not at --engine-url"
    )
    worker_id: WorkerId | None = Field(default=None, description="of this engine, in its cell")
    dp_rank: DpRank | None = Field(
        default=None, description="of a data-parallel engine; without it: as its events say"
    )
    model: str | None = Field(default=None, description="the cell's model")
    block_size: BlockSize | None = Field(default=None, description="the cell's tokens per block")
    cell: str = Field(default="default", min_length=1, description="the cell's name")
    log: tuple[str, ...] = Field(
        default=(),
        description="where events go, repeatable: grpc://H:P[,H:P...] (straight to indexers), "
        f"{LOG_SERVER_URLS}",
    )
    role: Literal["", "prefill", "decode"] = ""
    labels: dict[str, str] = Field(default_factory=dict[str, str])
    engines: tuple[EngineSettings, ...] = ()
    state_dir: Path | None = Field(
        default=None,
        description="where the highest epoch used and the mirror are kept over restarts, two files "
        "per engine rank; publishers may share it. Without it, a clock that was set back can open "
        "an older epoch, and what the engine no longer replays is lost at a restart",
    )
    checkpoint_s: float = Field(
        default=30.0,
        ge=0,
        description="between two writes of the mirror to --state-dir; 0: only at stop",
    )
    listen: HostPort = Field(
        default=HostPort("127.0.0.1", 0), description="where Publisher RPC is served"
    )
    advertise: HostPort | None = Field(
        default=None, description="where indexers reach --listen, if not there"
    )
    heartbeat_s: float = Field(default=1.0, gt=0, le=60)
    engine_gone_s: float = Field(
        default=10.0, gt=0, description="without events' connection and HTTP for so long: gone"
    )
    flush_s: float = Field(default=0.003, ge=0, le=1, description="events wait so long for others")
    mirror_blocks_max: int = Field(default=4_000_000, ge=1)
    replay_bytes_max: int = Field(
        default=8 << 20,
        ge=0,
        description="of each engine rank's newest records, kept for indexers that lost some",
    )

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if self.engines and (self.events is not None or self.worker_id is not None):
            raise ValueError(
                "--events and --worker-id stand in each entry of engines:, if there is one"
            )
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSpec:
    """One engine rank to follow, everything settled."""

    engine: Engine
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
        """Where records go with no log between: host:port each."""
        direct = [url.removeprefix("grpc://") for url in self.logs if url.startswith("grpc://")]
        return [address for url in direct for address in url.rstrip("/").split(",")]

    def open_writers(self) -> list[LogWriter]:
        """Open every destination of this rank's records.

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
    entries = settings.engines or (_sole_entry(settings),)
    specs = [_spec(settings, entry) for entry in entries]
    seen: set[Worker] = set()
    for spec in specs:
        if spec.dp_rank is None:
            continue  # as its events will say
        worker = Worker(spec.worker_id, spec.dp_rank)
        if worker in seen:
            raise SettingsError(f"kvatlas publisher: engines: worker {worker} is listed twice")
        seen.add(worker)
    return specs


def _sole_entry(settings: PublisherSettings) -> EngineSettings:
    if settings.events is None or settings.worker_id is None:
        own = {"--events": settings.events, "--worker-id": settings.worker_id}
        raise _missing(own | _shared(settings))
    return EngineSettings(
        events=settings.events,
        replay=settings.replay,
        engine_url=settings.engine_url,
        advertise_engine_url=settings.advertise_engine_url,
        worker_id=settings.worker_id,
        dp_rank=settings.dp_rank,
        labels=settings.labels,
    )


def _spec(settings: PublisherSettings, entry: EngineSettings) -> EngineSpec:
    model = entry.model or settings.model
    block_size = entry.block_size or settings.block_size
    logs = entry.log or settings.log
    if not model or not block_size or not logs:
        raise _missing({"--model": model, "--block-size": block_size, "--log": logs})
    return EngineSpec(
        engine=entry.engine or settings.engine,
        events=entry.events,
        replay=entry.replay,
        engine_url=entry.engine_url,
        advertised_url=entry.advertise_engine_url or entry.engine_url or "",
        worker_id=entry.worker_id,
        dp_rank=entry.dp_rank,
        model=model,
        block_size=block_size,
        cell=entry.cell or settings.cell,
        logs=logs,
        role=settings.role if entry.role is None else entry.role,
        labels={**settings.labels, **entry.labels},
    )


def _shared(settings: PublisherSettings) -> dict[str, object]:
    """What every engine needs and may share with the others."""
    return {
        "--model": settings.model,
        "--block-size": settings.block_size,
        "--log": settings.log,
    }


def _missing(required: Mapping[str, object]) -> SettingsError:
    """The error that names all that is required and not there, since one would be told at a time."""
    gone = [flag for flag, value in required.items() if value in {None, "", ()}]
    return SettingsError("kvatlas publisher: " + "; ".join(f"{flag} is required" for flag in gone))


def new_instance_id() -> int:
    """Return a random number that tells this process from any other publisher."""
    return uuid.uuid4().int & (2**64 - 1)
