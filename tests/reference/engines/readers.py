"""The specified readers by engine name; each is made from the configured block size."""

from collections.abc import Callable, Mapping

from kvatlas_engines import EngineName
from tests.reference.engines.reader import EngineReader
from tests.reference.engines.sglang import SglangReader
from tests.reference.engines.vllm import VllmReader

READERS: Mapping[EngineName, Callable[[int], EngineReader]] = {
    "vllm": VllmReader,
    "sglang": SglangReader,
}
