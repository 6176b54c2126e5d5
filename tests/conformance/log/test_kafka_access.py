"""Kafka behind TLS and passwords: a real broker lets us in by each mechanism, or says why not."""

import asyncio
import random
import uuid
from collections.abc import Generator
from pathlib import Path

import pytest
import trustme

from kvatlas_events import LogReader, LogSlice, LogUnavailable, open_reader, open_writers
from kvatlas_events.backoff import Backoff
from kvatlas_indexer.logs.log_feed import LogFeed
from kvatlas_testing.kafka import EmbeddedKafka
from tests.brokers import kafka_broker
from tests.conformance.log.certificates import Authority
from tests.unit.cell.bench import Bench

pytestmark = pytest.mark.usefixtures("connections_gone")

USER, PASSWORD, IN_URL = "atlas", "s3cret/of:ours", "s3cret%2Fof%3Aours"


class Secured:
    """A broker that shows a certificate and asks for a password, and what a client needs."""

    def __init__(self, kafka: EmbeddedKafka, authority: Path, stranger: Path) -> None:
        self.kafka = kafka
        self.authority = authority
        self.stranger = stranger
        self.port = int(kafka.address.rpartition(":")[2])

    def url(
        self,
        *,
        password: str = IN_URL,
        authority: Path | None = None,
        host: str = "127.0.0.1",
        more: str = "",
    ) -> str:
        trusted = authority or self.authority
        place = f"{USER}:{password}@{host}:{self.port}"
        return f"kafka+tls://{place}?ssl_ca_certs={trusted}{more}"


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Generator[Secured]:
    folder = tmp_path_factory.mktemp("certificates")
    authority = Authority()
    shown = authority.write_for_kafka(folder / "shown")
    with kafka_broker(certificate=shown, users={USER: PASSWORD}) as kafka:
        yield Secured(
            kafka, authority.write(folder / "authority"), Authority().write(folder / "stranger")
        )


@pytest.fixture
def cell() -> str:
    return f"test-{uuid.uuid4().hex}"


async def refusal(url: str, cell: str) -> str:
    """The error of a reader and a writer; both must be refused with the same text."""
    (writer,), reader = open_writers(url, cell=cell), open_reader(url, cell=cell)
    assert reader is not None
    with pytest.raises(LogUnavailable) as unwritten:
        await writer.append([b"x"])
    with pytest.raises(LogUnavailable) as unread:
        await reader.read(0)
    await writer.close()
    await reader.close()
    assert str(unwritten.value) == str(unread.value)
    assert "s3cret" not in str(unread.value)
    assert "\n" not in str(unread.value)
    return str(unread.value)


@pytest.mark.parametrize("mechanism", [None, "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
async def test_records_pass_by_each_mechanism(
    secured: Secured, cell: str, mechanism: str | None
) -> None:
    url = secured.url(more="" if mechanism is None else f"&sasl_mechanism={mechanism}")
    (writer,), reader = open_writers(url, cell=cell), open_reader(url, cell=cell)
    assert reader is not None
    assert writer.name == reader.name == f"kafka+tls://{secured.kafka.address}"
    await writer.append([b"a", b"b"])
    got = list[bytes]()
    async with asyncio.timeout(20):
        while len(got) < 2:
            got += (await reader.read(1)).records
    assert got == [b"a", b"b"]
    await writer.close()
    await reader.close()


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
async def test_a_wrong_password_names_the_user_and_what_to_set(
    secured: Secured, cell: str, mechanism: str
) -> None:
    url = secured.url(password="wrong", more=f"&sasl_mechanism={mechanism}")  # noqa: S106 - wrong
    said = await refusal(url, cell)
    assert said.startswith(
        f"kafka+tls://{secured.kafka.address} does not let user {USER} in by {mechanism}: "
    )
    assert said.endswith("; set the user and the password of the URL to what the cluster knows")


async def test_a_certificate_of_another_authority_names_the_option(
    secured: Secured, cell: str
) -> None:
    said = await refusal(secured.url(authority=secured.stranger), cell)
    assert "shows a certificate that is not trusted: " in said
    assert said.endswith("; set ssl_ca_certs to its authority's")


async def test_a_certificate_of_another_name_is_said_and_can_be_allowed(
    secured: Secured, cell: str
) -> None:
    said = await refusal(secured.url(host="localhost"), cell)
    assert "shows a certificate of another name: " in said
    url = secured.url(host="localhost", more="&ssl_check_hostname=false")
    (writer,) = open_writers(url, cell=cell)
    await writer.append([b"x"])
    await writer.close()


async def test_a_url_that_says_less_than_the_listener_asks_for_is_told_so(
    secured: Secured, cell: str
) -> None:
    said = await refusal(f"kafka://{secured.kafka.address}", cell)
    assert "hangs up; if its listener uses TLS, write kafka+tls://" in said
    nobody = f"kafka+tls://{secured.kafka.address}?ssl_ca_certs={secured.authority}"
    said = await refusal(nobody, cell)
    assert "if it asks who we are, write USER:PASSWORD@" in said


class Counting:
    """A reader whose failures a test waits for."""

    def __init__(self, reader: LogReader) -> None:
        self._reader = reader
        self.name = reader.name
        self.failures = 0

    async def read(self, wait_s: float) -> LogSlice:
        try:
            return await self._reader.read(wait_s)
        except LogUnavailable:
            self.failures += 1
            raise

    async def close(self) -> None:
        await self._reader.close()


@pytest.mark.parametrize("wrong", ["password", "authority"])
async def test_an_indexer_that_is_not_let_in_says_so_once_and_tries_again(
    secured: Secured, cell: str, wrong: str, caplog: pytest.LogCaptureFixture
) -> None:
    if wrong == "password":
        url = secured.url(password="wrong")  # noqa: S106 - as it says
    else:
        url = secured.url(authority=secured.stranger)
    inner, bench = open_reader(url, cell=cell), Bench()
    assert inner is not None
    reader = Counting(inner)
    backoff = Backoff(0.0, 0.0, random.Random(1))
    feed = LogFeed(bench.cell, reader, "kafka", backoff=backoff, unix_ms=lambda: bench.now_ms)
    task = asyncio.create_task(feed.run())
    async with asyncio.timeout(30):
        while reader.failures < 3:  # noqa: ASYNC110 - of another task
            await asyncio.sleep(0.01)
    assert not task.done()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await reader.close()
    warnings = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
    late = [each for each in warnings if each.endswith("is late with its answer")]
    assert len(set(warnings) - set(late)) == 1
    assert feed.obstacle is not None
    assert ("does not let user" if wrong == "password" else "not trusted") in feed.obstacle


def test_files_that_cannot_be_used_are_said_before_anything_connects(tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("")
    missing, empty = tmp_path / "missing", tmp_path / "empty"
    for option, why in (
        (f"ssl_ca_certs={missing}", f"ssl_ca_certs {missing} cannot be read: No such file"),
        (f"ssl_ca_certs={empty}", f"ssl_ca_certs {empty} cannot be used: it is not in PEM"),
        (f"ssl_certfile={empty}", f"ssl_certfile {empty} cannot be used"),
    ):
        with pytest.raises(ValueError, match=r"^kafka: [^\n]+$") as error:
            open_reader(f"kafka+tls://h:1?{option}", cell="c")
        assert why in str(error.value)


def test_a_certificate_of_our_own_is_shown(tmp_path: Path) -> None:
    ours = trustme.CA().issue_cert("us")
    ours.private_key_and_cert_chain_pem.write_to_path(tmp_path / "ours")
    assert open_reader(f"kafka+tls://h:1?ssl_certfile={tmp_path / 'ours'}", cell="c") is not None
