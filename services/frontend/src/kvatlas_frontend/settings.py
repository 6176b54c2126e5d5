"""The settings of a frontend, and the checks before it starts."""

from pathlib import Path
from typing import Self

from pydantic import Field, field_validator, model_validator

from kvatlas_chassis import HostPort, ServiceSettings
from kvatlas_frontend.routing.profile import BUILT_IN


class FrontendSettings(ServiceSettings):
    """Settings of `kvatlas frontend`."""

    listen: HostPort = Field(
        default=HostPort("127.0.0.1", 8000), description="address of the OpenAI API"
    )
    indexer: tuple[HostPort, ...] = Field(
        min_length=1, description="addresses of the cell's indexer replicas; any one can answer"
    )
    model: str = Field(min_length=1, description="name of the cell's model, equal in all processes")
    block_size: int = Field(
        gt=0, description="tokens per block, equal in all processes of the cell"
    )
    tokenizer: str = Field(
        default="engine",
        min_length=1,
        description="path of a tokenizer.json or of a model's directory, or 'engine' to ask an "
        "engine for each prompt's tokens",
    )
    policy: str = Field(
        default="kv-aware",
        description=f"routing policy: {', '.join(BUILT_IN)}, or a profile's YAML file",
    )
    processes: int = Field(
        default=1,
        gt=0,
        le=64,
        description="number of processes that serve the port; more than 1 where one core is too "
        "little. They are one frontend: one admin port, and each knows the load of all",
    )
    deadline_ms: float = Field(
        default=100.0,
        gt=0,
        description="longest wait for matches from all replicas together, in ms; after it, load "
        "alone decides",
    )
    tokenize_deadline_ms: float = Field(
        default=2000.0, gt=0, description="longest wait for an engine to tokenize a prompt, in ms"
    )
    tokenize_threads: int = Field(default=2, gt=0, description="number of tokenizing threads")
    native_prompts: bool = Field(
        default=True,
        description="read prompts in the data plane; Python reads those that it leaves, or all",
    )
    conversation_cache_bytes_max: int = Field(
        default=64 * 1024 * 1024,
        ge=0,
        description="memory for the tokens of earlier prompts, in bytes, so that a conversation's "
        "past is tokenized once; 0: off",
    )
    tenant_header: str = Field(
        default="",
        pattern=r"^[A-Za-z0-9-]*$",
        description="header that names the tenant, as a gateway sets it; tenants share no cached "
        "tokens; a request without it is its credentials' tenant",
    )
    request_bytes_max: int = Field(
        default=32 * 1024 * 1024,
        gt=0,
        description="largest request body, in bytes; a larger one is answered with status 413",
    )
    response_buffer_bytes_max: int = Field(
        default=4 * 1024 * 1024,
        gt=0,
        description="largest unstreamed answer that is sent only once it is complete, in bytes; a "
        "larger one is forwarded as it arrives",
    )
    head_timeout_s: float = Field(
        default=10.0, gt=0, description="longest wait for the headers of a request, in seconds"
    )
    body_timeout_s: float = Field(
        default=20.0,
        gt=0,
        description="longest wait for the body of a request, in seconds, beyond a second for every "
        "16 KiB",
    )
    idle_timeout_s: float = Field(
        default=75.0,
        gt=0,
        description="longest pause between two requests of a connection, in seconds",
    )
    write_timeout_s: float = Field(
        default=60.0,
        gt=0,
        description="longest time that a client reads nothing of its answer, in seconds",
    )
    first_byte_timeout_s: float = Field(
        default=600.0,
        ge=0,
        description="longest wait for the first byte of an engine's answer, in seconds; 0: no limit",
    )
    between_bytes_timeout_s: float = Field(
        default=120.0,
        ge=0,
        description="longest pause inside an engine's answer, in seconds; 0: no limit",
    )
    connect_timeout_s: float = Field(
        default=2.0, gt=0, description="longest wait for a connection to an engine, in seconds"
    )
    engine_ca_file: Path | None = Field(
        default=None,
        description="PEM file of the CAs that sign the certificates of https:// engines; without "
        "it, the system's CAs are trusted",
    )
    engine_client_cert: Path | None = Field(
        default=None,
        description="PEM file of the certificate that is shown to https:// engines, with its "
        "chain (mutual TLS)",
    )
    engine_client_key: Path | None = Field(
        default=None, description="PEM file of that certificate's private key, not encrypted"
    )
    attempts_max: int = Field(
        default=5, gt=0, description="most workers that one request is sent to"
    )
    responses_remembered_max: int = Field(
        default=65_536,
        gt=0,
        description="number of stored responses whose engine is remembered, those used last; a "
        "request that follows an older one is answered with status 404",
    )
    probe_interval_s: float = Field(
        default=1.0,
        gt=0,
        description="time between health checks of stale and failing engines, in seconds",
    )
    models_interval_s: float = Field(
        default=5.0,
        gt=0,
        description="time between requests for the engines' lists of models, in seconds",
    )

    @field_validator("indexer")
    @classmethod
    def _named_once(cls, replicas: tuple[HostPort, ...]) -> tuple[HostPort, ...]:
        """Refuse a replica that is named twice: it is most likely a typing error."""
        if len(set(replicas)) != len(replicas):
            raise ValueError("the same indexer is named twice")
        return replicas

    @model_validator(mode="after")
    def _certificate_and_key(self) -> Self:
        """Refuse half of what mutual TLS needs."""
        if (self.engine_client_cert is None) != (self.engine_client_key is None):
            raise ValueError("--engine-client-cert and --engine-client-key go together")
        return self
