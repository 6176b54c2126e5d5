"""Settings of `kvatlas mock-engine`."""

import re
from pathlib import Path
from typing import Annotated, Self

from pydantic import AfterValidator, Field, model_validator

from kvatlas_chassis import HostPort, ServiceSettings


def _endpoint(url: str) -> str:
    if not re.fullmatch(r"tcp://.+:(\d+|\*)", url):
        raise ValueError(f"{url!r} is no tcp://HOST:PORT, with * for any free port")
    return url


Endpoint = Annotated[str, AfterValidator(_endpoint)]


class MockEngineSettings(ServiceSettings):
    """What a mock engine can be told. Times are before `speedup`."""

    listen: HostPort = Field(
        default=HostPort("127.0.0.1", 8000), description="where the OpenAI API listens"
    )
    events: Endpoint | None = Field(
        default=None,
        description="ZMQ endpoint of the KV events, tcp://H:P; rank r uses P + r; none: no events",
    )
    replay: Endpoint | None = Field(
        default=None,
        description="ZMQ endpoint of the replay socket, tcp://H:P; rank r uses P + r",
    )
    topic: str = Field(default="kv-events", description="topic of the KV events")
    model: str = Field(default="mock", min_length=1, description="name of the served model")
    lora: tuple[str, ...] = Field(default=(), description="names of the served LoRA adapters")
    tokenizer: str = Field(
        default="bytes",
        description="tokenizer.json, or a directory that holds one and may hold a chat template, "
        "or 'bytes': a token is a byte of UTF-8",
    )
    fast_tokenizer: bool = Field(
        default=False, description="encode with fastokens, unchecked, instead of tokenizers"
    )
    block_size: int = Field(default=16, ge=1, le=65_536, description="tokens of a block")
    blocks: int = Field(default=16_384, ge=1, description="blocks of a rank's cache")
    max_model_len: int | None = Field(
        default=None, ge=1, description="longest prompt + output, tokens; at most the cache's size"
    )
    dp_ranks: int = Field(default=1, ge=1, le=64, description="data-parallel ranks")
    max_running: int = Field(default=256, ge=1, description="requests in one rank's batch")
    max_waiting: int = Field(default=4096, ge=1, description="requests that wait for one rank")
    max_step_tokens: int = Field(default=8192, ge=1, description="tokens computed in one step")
    speedup: float = Field(default=1.0, gt=0, description="divides all times; inf: no time at all")
    step_ms: float = Field(default=10.0, ge=0, description="fixed time of a step")
    prefill_token_us: float = Field(default=60.0, ge=0, description="time of an uncached token")
    decode_request_us: float = Field(default=150.0, ge=0, description="time of a decoding request")
    default_output_tokens: int = Field(
        default=64, ge=1, description="where a chat without max_tokens ends by itself"
    )
    hash_seed: str = Field(
        default="", description="seed of the block hashes; empty: another at each start"
    )
    repeat_stores: bool = Field(
        default=False,
        description="store and announce a block again that another request has computed, as vLLM",
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        capacity = self.blocks * self.block_size
        if self.max_model_len is not None and self.max_model_len > capacity:
            raise ValueError(
                f"max_model_len {self.max_model_len} exceeds the cache: "
                f"{self.blocks} blocks of {self.block_size} hold {capacity} tokens"
            )
        if self.replay is not None and self.events is None:
            raise ValueError("replay needs events")
        if self.tokenizer != "bytes" and not Path(self.tokenizer).exists():
            raise ValueError(f"tokenizer: there is no {self.tokenizer}")
        served = (self.model, *self.lora)
        if len(set(served)) != len(served):
            raise ValueError("model and lora names must differ from each other")
        return self

    @property
    def context_tokens(self) -> int:
        """The longest prompt + output."""
        return self.max_model_len or self.blocks * self.block_size
