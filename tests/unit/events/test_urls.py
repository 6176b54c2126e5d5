"""Log URLs: what they open, and what is said of those that cannot be used."""

import re
from pathlib import Path

import pytest

from kvatlas_chassis import ServiceSettings, load_settings
from kvatlas_events import LOG_SERVER_URLS, open_reader, open_writers
from kvatlas_indexer.settings import IndexerSettings
from kvatlas_publisher.settings import PublisherSettings


def test_every_replica_of_a_direct_transport_is_a_writer_of_its_own() -> None:
    writers = open_writers("grpc://a:1,b:2,[::1]:3", cell="c")
    assert [writer.name for writer in writers] == ["grpc://a:1", "grpc://b:2", "grpc://[::1]:3"]


def test_an_indexer_reads_no_log_of_a_direct_transport() -> None:
    assert open_reader("grpc:", cell="c") is None


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("redis://h", "redis://h:6379"),
        ("redis://user:secret@h:7/3", "redis://h:7/3"),
        ("rediss://:secret@[::1]:7?ssl_cert_reqs=none", "rediss://[::1]:7"),
        ("kafka://h:1", "kafka://h:1"),
        ("kafka://a:1,[::1]:2/", "kafka://a:1,[::1]:2"),
        ("kafka://user:secret@h:1?sasl_mechanism=PLAIN", "kafka://h:1"),
        ("kafka+tls://h:1", "kafka+tls://h:1"),
        (
            "kafka+tls://us%40er:s%2Fec%3Aret@a:1,b:2?ssl_check_hostname=false",
            "kafka+tls://a:1,b:2",
        ),
    ],
)
def test_a_name_is_an_address_without_credentials(url: str, name: str) -> None:
    (writer,) = open_writers(url, cell="c")
    reader = open_reader(url, cell="c")
    assert reader is not None
    assert writer.name == reader.name == name


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("", "begins with a scheme"),
        ("127.0.0.1:6379", "127.0.0.1: is an unknown kind of log"),
        ("http://h:1", "http: is an unknown kind of log"),
        ("memory:", "inside one process"),
        ("kafka:", "is not of the form kafka[+tls]://[USER:PASSWORD@]HOST:PORT"),
        ("kafka://h", "is not of the form"),
        ("kafka://h:1,", "is not of the form"),
        ("kafka://h:1/topic", "is not of the form"),
        ("kafka://user:sec/ret@h:1,", "is not of the form"),
        ("kafka://user:sec?ret@h:1", "is not of the form"),
        (
            "kafka://h:1?password=secret",
            "an unknown option; the options are sasl_mechanism, ssl_ca_certs",
        ),
        ("kafka://secret@h:1", "needs a name and a password"),
        ("kafka://:secret@h:1", "needs a name and a password"),
        ("kafka://h:1?sasl_mechanism=PLAIN", "sasl_mechanism needs a user"),
        ("kafka://u:secret@h:1?sasl_mechanism=plain", "must be one of PLAIN, SCRAM-SHA-256, SCRAM"),
        ("kafka://u:secret@h:1?sasl_mechanism=", "sasl_mechanism takes exactly one value"),
        ("kafka://u:secret@h:1?ssl_ca_certs=ca.pem", "are options of kafka+tls://"),
        ("kafka+tls://h:1?ssl_keyfile=key.pem", "ssl_keyfile needs ssl_certfile"),
        ("kafka+tls://h:1?ssl_check_hostname=no", "ssl_check_hostname must be true or false"),
        ("grpc://", "'' is not HOST:PORT"),
        ("grpc://h", "'h' is not HOST:PORT"),
        ("grpc://h:1,", "'' is not HOST:PORT"),
        ("grpc://h:1/path,i:2", "'h:1/path' is not HOST:PORT"),
        ("grpc://h:1,h:1", "names an indexer twice"),
        ("grpc://h h:1", "'h h:1' is not host:port"),
        ("grpc://bücher:1", "'bücher:1' is not host:port"),
        ("grpc://user:secret@h:1", "grpc: takes no account"),
        ("redis://", "without a host"),
        ("redis://h:port", "cannot be told apart"),
        ("redis://:sec/ret@h:1", "cannot be told apart"),
        ("redis://:secret@h:1?ssl_cert_reqs=none", "rediss:// also takes"),
        ("redis://:secret@h:1?decode_responses=true", "unknown option decode_responses"),
        ("rediss://:secret@h:1?ssl_cert_reqs=secret", "cannot be used"),
    ],
)
def test_what_cannot_be_used_is_one_line_without_a_password(url: str, why: str) -> None:
    with pytest.raises(ValueError, match=r"^[^\n]+$") as error:
        open_writers(url, cell="c")
    assert why in str(error.value)
    assert "sec" not in str(error.value).replace("ssl_", "")


def test_a_url_to_push_to_names_somebody() -> None:
    with pytest.raises(ValueError, match="names no indexer"):
        open_writers("grpc:", cell="c")


@pytest.mark.parametrize("cell", ["", "a b", "ä", "a/b", "x" * 201])
def test_a_cell_that_can_name_no_topic_is_said_before_anything_connects(cell: str) -> None:
    with pytest.raises(ValueError, match=r"^kafka: a topic is named after the cell[^\n]+$"):
        open_writers("kafka://h:1", cell=cell)
    with pytest.raises(ValueError, match="a cell cannot be called"):
        open_reader("kafka://h:1", cell=cell)


def test_every_form_that_is_told_opens_and_every_form_of_the_readme_is_told() -> None:
    schemes = re.findall(r"([a-z+]+)://", LOG_SERVER_URLS)
    for scheme in schemes:
        (writer,) = open_writers(f"{scheme}://h:1", cell="c")
        assert writer.name == f"{scheme}://h:1"
    readme = Path(__file__).parents[3] / "libs/events/README.md"
    assert {*schemes, "grpc"} == set(re.findall(r"([a-z+]+)://", readme.read_text()))


def test_the_options_that_are_told_are_those_that_an_unknown_one_is_answered_with() -> None:
    told = set(re.findall(r"(?:ssl|sasl)_[a-z_]+", LOG_SERVER_URLS))
    with pytest.raises(ValueError, match="option") as kafka:
        open_writers("kafka://h:1?unknown=1", cell="c")
    with pytest.raises(ValueError, match="option") as redis:
        open_writers("rediss://h:1?unknown=1", cell="c")
    assert told == set(re.findall(r"(?:ssl|sasl)_[a-z_]+", str(kafka.value)))
    for_tests = {"ssl_cert_reqs"}
    of_redis = set(re.findall(r"ssl_[a-z_]+", str(redis.value))) - for_tests
    assert told == {*of_redis, "sasl_mechanism"}


@pytest.mark.parametrize("settings", [IndexerSettings, PublisherSettings])
def test_the_help_of_both_services_tells_them(
    settings: type[ServiceSettings], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        load_settings(settings, service="x", argv=["--help"], environ={}, description="")
    assert LOG_SERVER_URLS in " ".join(capsys.readouterr().out.split())
