"""URLs of Redis logs: what they mean, and what is said of those that cannot be used."""

from pathlib import Path

import pytest

from kvatlas_events import open_reader, open_writers
from kvatlas_events.redis.url import RedisUrl


@pytest.mark.parametrize(
    ("url", "name", "shards"),
    [
        ("redis://h", "redis://h:6379", 1),
        ("redis://u:secret@h:1/2?shards=4", "redis://h:1/2", 4),
        ("redis+cluster://:secret@h:1", "redis+cluster://h:1", 8),
        ("redis+cluster://a:1,[::1]:2,c?shards=64", "redis+cluster://a:1,[::1]:2,c:6379", 64),
        ("rediss+cluster://a:1/0?ssl_cert_reqs=none", "rediss+cluster://a:1", 8),
    ],
)
def test_a_url_names_server_or_nodes_and_the_number_of_shards(
    url: str, name: str, shards: int
) -> None:
    (writer,) = open_writers(url, cell="c")
    reader = open_reader(url, cell="c")
    assert reader is not None
    assert writer.name == reader.name == name
    assert RedisUrl.of(url).shards == shards


def test_each_node_is_talked_to_with_the_credentials_and_options_of_all() -> None:
    url = RedisUrl.of("rediss+cluster://u:s%2Ft@a:1,b:2/0?ssl_check_hostname=false&shards=2")
    assert url.at(("b", 2)) == "rediss://u:s%2Ft@b:2?ssl_check_hostname=false"


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("redis://:secret@a:1,b:2", "names one server; for a cluster write redis+cluster://"),
        ("redis+cluster://", "without a host"),
        ("redis+cluster://a:1,", "without a host"),
        ("redis+cluster://:secret@a:1/3", "a cluster has no databases"),
        ("redis://:secret@h:1?shards=0", "?shards=N with N from 1 to 64"),
        ("redis://:secret@h:1?shards=65", "?shards=N with N from 1 to 64"),
        ("redis://:secret@h:1?shards=", "?shards=N with N from 1 to 64"),
        ("redis+cluster://:secret@h:1?ssl_cert_reqs=none", "rediss:// also takes"),
        ("rediss://:secret@h:1?ssl_ca_certs=/not/there", "ssl_ca_certs: there is no file /not/th"),
    ],
)
def test_what_cannot_be_used_is_one_line_without_a_password(url: str, why: str) -> None:
    with pytest.raises(ValueError, match=r"^[^\n]+$") as error:
        open_writers(url, cell="c")
    assert why in str(error.value)
    assert "secret" not in str(error.value)


def test_a_file_that_holds_no_certificate_is_said_before_anything_connects(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("no certificate")
    with pytest.raises(ValueError, match="must be files in PEM"):
        open_writers(f"rediss://h?ssl_ca_certs={tmp_path / 'ca.pem'}", cell="c")


def test_a_cell_that_would_take_a_shards_keys_apart_is_refused_in_a_cluster() -> None:
    with pytest.raises(ValueError, match="no braces: '}'"):
        open_reader("redis+cluster://h:1", cell="}")
