"""Addresses as users write them."""

from dataclasses import dataclass
from typing import Self

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

_PORT_MAX = 65_535


@dataclass(frozen=True, slots=True)
class HostPort:
    """A TCP address. To listen on port 0 means any free port."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `host:port`, `[v6]:port`.

        Raises:
            ValueError: the text is neither; the message names it.
        """
        host, colon, port = text.rpartition(":")
        if not colon or not port.isdecimal() or int(port) > _PORT_MAX:
            raise ValueError(f"{text!r} is not HOST:PORT")
        if host.startswith("[") and host.endswith("]"):
            host = host[1:-1]
        elif ":" in host:
            raise ValueError(f"{text!r}: put an IPv6 address in brackets")
        if not host:
            raise ValueError(f"{text!r} names no host")
        return cls(host, int(port))

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @classmethod
    def __get_pydantic_core_schema__(
        cls, source: object, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(
            cls._validate, serialization=core_schema.to_string_ser_schema()
        )

    @classmethod
    def _validate(cls, value: object) -> Self:
        if isinstance(value, cls):
            return value
        if isinstance(value, str):
            return cls.parse(value)
        raise ValueError(f"{value!r} is not HOST:PORT")
