"""Addresses are read as users write them."""

import pytest

from kvatlas_chassis import HostPort


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("127.0.0.1:80", "127.0.0.1", 80),
        ("indexer-0.indexer:0", "indexer-0.indexer", 0),
        ("[::1]:65535", "::1", 65535),
    ],
)
def test_an_address_is_read_and_written_back(text: str, host: str, port: int) -> None:
    address = HostPort.parse(text)
    assert address == HostPort(host, port)
    assert str(address) == text


@pytest.mark.parametrize(
    "text", ["", "80", ":80", "h:", "h:x", "h:-1", "h:65536", "::1:80", "h:1.5"]
)
def test_what_is_no_address_is_refused_by_its_text(text: str) -> None:
    with pytest.raises(ValueError, match=r"HOST:PORT|brackets|no host"):
        HostPort.parse(text)
