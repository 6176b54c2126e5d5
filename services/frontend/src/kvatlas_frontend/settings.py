"""What a frontend can be told, and what it checks before it starts."""

from pydantic import Field, field_validator

from kvatlas_chassis import HostPort, ServiceSettings


class FrontendSettings(ServiceSettings):
    """Settings of `kvatlas frontend`."""

    listen: HostPort = Field(
        default=HostPort("127.0.0.1", 8000), description="where the OpenAI API listens"
    )
    indexer: tuple[HostPort, ...] = Field(
        min_length=1, description="the cell's indexer replicas; any of them can answer"
    )
    model: str = Field(min_length=1, description="the model of the cell, as its indexers name it")
    block_size: int = Field(gt=0, description="tokens per block, equal in the whole cell")
    tokenizer: str = Field(
        default="engine",
        min_length=1,
        description="a tokenizer.json, a model's directory, or 'engine' to ask an engine",
    )
    policy: str = Field(
        default="kv-aware",
        description="kv-aware, least-loaded, round-robin, or a profile's YAML file",
    )
    deadline_ms: float = Field(
        default=100.0,
        gt=0,
        description="longest wait for matches, over all replicas; then load alone decides",
    )
    tokenize_deadline_ms: float = Field(
        default=2000.0, gt=0, description="longest wait for an engine that is asked to tokenize"
    )
    tokenize_threads: int = Field(default=2, gt=0, description="threads that tokenize")
    request_bytes_max: int = Field(
        default=32 * 1024 * 1024, gt=0, description="largest request body; above it: 413"
    )
    response_buffer_bytes_max: int = Field(
        default=4 * 1024 * 1024,
        gt=0,
        description="an unstreamed answer up to this size is held back until it is whole",
    )
    connect_timeout_s: float = Field(default=2.0, gt=0, description="to connect to an engine")
    attempts_max: int = Field(
        default=3, gt=0, description="different workers one request is offered to"
    )
    probe_interval_s: float = Field(
        default=1.0, gt=0, description="how often stale and failing engines are probed"
    )
    models_interval_s: float = Field(
        default=5.0, gt=0, description="how often engines are asked for their models"
    )

    @field_validator("indexer")
    @classmethod
    def _named_once(cls, replicas: tuple[HostPort, ...]) -> tuple[HostPort, ...]:
        """The same replica twice is no second replica; a typo is likelier than a wish."""
        if len(set(replicas)) != len(replicas):
            raise ValueError("the same indexer is named twice")
        return replicas
