"""Settings of `kvatlas mock-engine`."""

import re
from pathlib import Path
from typing import Annotated, Self

from pydantic import AfterValidator, Field, model_validator

from kvatlas_chassis import HostPort, ServiceSettings


def _endpoint(url: str) -> str:
    if not re.fullmatch(r"tcp://.+:(\d+|\*)", url):
        raise ValueError(f"{url!r} is not tcp://HOST:PORT, with * for any free port")
    return url


Endpoint = Annotated[str, AfterValidator(_endpoint)]


class MockEngineSettings(ServiceSettings):
    """The settings of a mock engine. Durations are those before `speedup`."""

    listen: HostPort = Field(
        default=HostPort("127.0.0.1", 8000), description="address of the OpenAI API"
    )
    events: Endpoint | None = Field(
        default=None,
        description="ZMQ endpoint of the KV events, tcp://H:P; rank r uses port P + r (default: no "
        "events)",
    )
    replay: Endpoint | None = Field(
        default=None,
        description="ZMQ endpoint of the replay socket, tcp://H:P; rank r uses port P + r (default: "
        "no replay)",
    )
    topic: str = Field(default="kv-events", description="ZMQ topic of the KV events")
    model: str = Field(default="mock", min_length=1, description="name of the served model")
    lora: tuple[str, ...] = Field(default=(), description="names of the served LoRA adapters")
    tokenizer: str = Field(
        default="bytes",
        description="path of a tokenizer.json, or of a directory with one and perhaps a chat "
        "template, or 'bytes': each byte of UTF-8 is a token",
    )
    fast_tokenizer: bool = Field(
        default=False,
        description="encode with fastokens, which is faster than tokenizers and not checked here",
    )
    block_size: int = Field(default=16, ge=1, le=65_536, description="tokens per block")
    blocks: int = Field(default=16_384, ge=1, description="blocks in each rank's cache")
    max_model_len: int | None = Field(
        default=None,
        ge=1,
        description="longest prompt and output together, in tokens (default: the cache's size)",
    )
    dp_ranks: int = Field(default=1, ge=1, le=64, description="number of data-parallel ranks")
    max_running: int = Field(
        default=256, ge=1, description="largest batch of one rank, in requests"
    )
    max_waiting: int = Field(
        default=4096, ge=1, description="longest queue of one rank, in requests"
    )
    max_step_tokens: int = Field(
        default=8192, ge=1, description="largest number of tokens in a step"
    )
    speedup: float = Field(
        default=1.0, gt=0, description="factor by which all durations are divided; inf: no delay"
    )
    step_ms: float = Field(default=10.0, ge=0, description="fixed duration of a step, in ms")
    prefill_token_us: float = Field(
        default=60.0, ge=0, description="time of a step per uncached prompt token, in µs"
    )
    decode_request_us: float = Field(
        default=150.0, ge=0, description="time of a step per decoding request, in µs"
    )
    default_output_tokens: int = Field(
        default=64, ge=1, description="length of a chat's answer without max_tokens, in tokens"
    )
    hash_seed: str = Field(
        default="", description="seed of the block hashes (default: a new one at each start)"
    )
    repeat_stores: bool = Field(
        default=False,
        description="like vLLM, store a block again, with an event, when a second request computes it",
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
