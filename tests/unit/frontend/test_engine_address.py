"""What counts as an engine's address in a text that a client would read."""

import pytest
from yarl import URL

from kvatlas_frontend.proxy.engine import speaks_of


@pytest.mark.parametrize(
    ("url", "text", "speaks"),
    [
        ("http://10.0.0.7:8000/v1", "see http://10.0.0.7:8000/docs", True),
        ("http://10.0.0.7:8000/v1", "peer 10.0.0.7 is gone", True),
        ("http://10.0.0.7:8000/v1", "peer 10.0.0.8 is gone", False),
        ("http://[fd00::7]:8000/v1", "peer fd00::7 is gone", True),
        ("http://gpu-7.internal:8000/v1", "host gpu-7.internal", True),
        ("http://vllm:8000/v1", "vllm has no such option", False),
        ("http://vllm:8000/v1", "refused by vllm:8000", True),
        ("http://vllm/v1", "refused by http://vllm", True),
    ],
)
def test_an_address_is_told_from_a_word(url: str, text: str, speaks: bool) -> None:
    assert speaks_of(URL(url), text.encode()) is speaks
