"""Kafka by TLS without users: a real broker that asks for nothing more, and one that wants to know us.

With passwords besides see `test_kafka_access.py`.
"""

import asyncio
import uuid
from collections.abc import Generator
from pathlib import Path

import pytest

from kvatlas_events import (
    Claim,
    LogUnavailable,
    WorkerKey,
    open_claims,
    open_prober,
    open_reader,
    open_writers,
)
from kvatlas_testing.child_process import paused
from kvatlas_testing.kafka import EmbeddedKafka
from tests.brokers import kafka_broker
from tests.conformance.log.certificates import Authority, chain_of

pytestmark = pytest.mark.usefixtures("connections_gone")


class Certificates:
    """An authority with a certificate of the broker and one of ours; and a stranger's."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        authority = Authority()
        authority.write(folder / "authority")
        authority.write_for_kafka(folder / "shown")
        ours = authority.ca.issue_cert("publisher")
        ours.private_key_and_cert_chain_pem.write_to_path(folder / "ours")
        ours.private_key_pem.write_to_path(folder / "key")
        (folder / "chain").write_bytes(chain_of(ours))
        theirs = Authority().ca.issue_cert("publisher")
        theirs.private_key_and_cert_chain_pem.write_to_path(folder / "theirs")

    def url(self, kafka: EmbeddedKafka, user: str = "", **files: str) -> str:
        """Return the URL of `kafka`, each option of which names one of our files."""
        options = "".join(f"&{name}={self.folder / file}" for name, file in files.items())
        return (
            f"kafka+tls://{user}{kafka.address}?ssl_ca_certs={self.folder / 'authority'}{options}"
        )


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def asks_nothing(certificates: Certificates) -> Generator[EmbeddedKafka, None, None]:
    with kafka_broker(certificate=certificates.folder / "shown") as broker:
        yield broker


@pytest.fixture(scope="module")
def wants_to_know_us(certificates: Certificates) -> Generator[EmbeddedKafka, None, None]:
    folder = certificates.folder
    with kafka_broker(
        certificate=folder / "shown", clients_authority=folder / "authority"
    ) as broker:
        yield broker


@pytest.fixture
def cell() -> str:
    return f"test-{uuid.uuid4().hex}"


async def passes(url: str, cell: str) -> None:
    """Let records, probes and claims through."""
    (writer,), reader = open_writers(url, cell=cell), open_reader(url, cell=cell)
    prober, claims = open_prober(url, cell=cell), open_claims(url, cell=cell)
    assert reader is not None
    assert prober is not None
    assert claims is not None
    await writer.append([b"a", b"b"])
    parts = await prober.append_probe(b"mark")
    records, probes = list[bytes](), list[tuple[int, bytes]]()
    async with asyncio.timeout(20):
        while len(records) < 2 or len(probes) < len(parts):
            slice_ = await reader.read(1)
            records += slice_.records
            probes += slice_.probes
    assert records == [b"a", b"b"]
    assert await claims.claim(Claim(WorkerKey(7, 0), 5, 1, "p")) is None
    for each in (writer, reader, prober, claims):
        await each.close()


async def refusals(url: str, cell: str) -> list[str]:
    """Return what a writer and a reader say, who must both be refused."""
    (writer,), reader = open_writers(url, cell=cell), open_reader(url, cell=cell)
    assert reader is not None
    with pytest.raises(LogUnavailable, match=r"^[^\n]+$") as unwritten:
        await writer.append([b"x"])
    with pytest.raises(LogUnavailable, match=r"^[^\n]+$") as unread:
        await reader.read(0)
    await writer.close()
    await reader.close()
    return [str(unwritten.value), str(unread.value)]


async def test_records_pass_by_tls_alone(
    asks_nothing: EmbeddedKafka, certificates: Certificates, cell: str
) -> None:
    await passes(certificates.url(asks_nothing), cell)


async def test_what_is_closed_while_the_broker_stands_still_waits_for_no_goodbye(
    asks_nothing: EmbeddedKafka, certificates: Certificates, cell: str
) -> None:
    url = certificates.url(asks_nothing)
    (writer,), reader = open_writers(url, cell=cell), open_reader(url, cell=cell)
    assert reader is not None
    await writer.append([b"x"])
    assert (await reader.read(1)).records == [b"x"]
    assert asks_nothing.pid is not None
    with paused(asks_nothing.pid):
        waiting = [asyncio.create_task(each) for each in (writer.append([b"y"]), reader.read(0.1))]
        await asyncio.sleep(0.5)
        for each in waiting:
            each.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        async with asyncio.timeout(5):
            await writer.close()
            await reader.close()


async def test_a_certificate_that_nobody_asked_for_does_no_harm(
    asks_nothing: EmbeddedKafka, certificates: Certificates, cell: str
) -> None:
    await passes(certificates.url(asks_nothing, ssl_certfile="theirs"), cell)


async def test_a_user_for_whom_nobody_asks_is_named_as_what_is_wrong(
    asks_nothing: EmbeddedKafka, certificates: Certificates, cell: str
) -> None:
    for said in await refusals(certificates.url(asks_nothing, "atlas:s3cret@"), cell):
        assert said.endswith(" asks for no user; write the URL without USER:PASSWORD@")
        assert "s3cret" not in said


async def test_without_tls_the_listener_hangs_up(asks_nothing: EmbeddedKafka, cell: str) -> None:
    for said in await refusals(f"kafka://{asks_nothing.address}", cell):
        assert "hangs up; if its listener uses TLS, write kafka+tls://" in said


@pytest.mark.parametrize(
    "files", [{"ssl_certfile": "ours"}, {"ssl_certfile": "chain", "ssl_keyfile": "key"}]
)
async def test_who_shows_a_trusted_certificate_is_let_in(
    wants_to_know_us: EmbeddedKafka, certificates: Certificates, cell: str, files: dict[str, str]
) -> None:
    await passes(certificates.url(wants_to_know_us, **files), cell)


@pytest.mark.parametrize("files", [{}, {"ssl_certfile": "theirs"}])
async def test_who_shows_none_or_a_strangers_is_told_what_to_set(
    wants_to_know_us: EmbeddedKafka, certificates: Certificates, cell: str, files: dict[str, str]
) -> None:
    for said in await refusals(certificates.url(wants_to_know_us, **files), cell):
        # The broker's reason, unless the connection is gone before it has been read.
        assert "without a certificate that it trusts: " in said or "hangs up; " in said
        assert "set ssl_certfile to one" in said
        assert "kafka+tls" in said
        assert "write kafka+tls" not in said
