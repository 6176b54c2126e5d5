"""Files of TLS that cannot be used end the start with one line that names flag, file and reason."""

from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from kvatlas_chassis import FatalError, HostPort, SettingsError, load_settings
from kvatlas_frontend.fleet.engine_tls import load_tls
from kvatlas_frontend.settings import FrontendSettings
from tests.conformance.log.certificates import Authority, write_identity


def settings(
    *,
    engine_ca_file: Path | None = None,
    engine_client_cert: Path | None = None,
    engine_client_key: Path | None = None,
) -> FrontendSettings:
    return FrontendSettings(
        indexer=(HostPort("a", 1),),
        model="m",
        block_size=16,
        engine_ca_file=engine_ca_file,
        engine_client_cert=engine_client_cert,
        engine_client_key=engine_client_key,
    )


def encrypted(key: Path) -> bytes:
    loaded = load_pem_private_key(key.read_bytes(), None)
    secret = BestAvailableEncryption(b"secret")
    return loaded.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, secret)


def empty(_: Path) -> bytes:
    return b""


def foreign_key(_: Path) -> bytes:
    return Authority().ca.issue_cert("other").private_key_pem.bytes()


def test_without_files_the_systems_cas_are_trusted() -> None:
    tls = load_tls(settings())
    assert tls.context.check_hostname


def test_a_ca_file_is_trusted_instead(tmp_path: Path) -> None:
    tls = load_tls(settings(engine_ca_file=Authority().write(tmp_path / "ca.pem")))
    assert len(tls.context.get_ca_certs()) == 1


def test_a_certificate_and_its_key_are_taken(tmp_path: Path) -> None:
    certificate, key = write_identity(Authority().ca.issue_cert("frontend"), tmp_path)
    load_tls(settings(engine_client_cert=certificate, engine_client_key=key))


def assert_one_line(message: str, *words: str) -> None:
    assert "\n" not in message
    for word in words:
        assert word in message


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "No such file"),
        ("", "no certificate"),
        ("no PEM", "no certificate"),
        ("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", "cannot be read"),
        ("-----BEGIN CERTIFICATE-----\nAAAA", "not PEM"),
    ],
)
def test_a_bad_ca_file_is_named(tmp_path: Path, content: str | None, reason: str) -> None:
    file = tmp_path / "ca.pem"
    if content is not None:
        file.write_text(content)
    with pytest.raises(FatalError) as raised:
        load_tls(settings(engine_ca_file=file))
    assert_one_line(str(raised.value), f"--engine-ca-file {file}: ", reason)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (encrypted, "no unencrypted private key"),
        (foreign_key, "does not go with the certificate"),
        (empty, "no unencrypted private key"),
    ],
    ids=["encrypted", "foreign", "empty"],
)
def test_a_bad_key_is_named(tmp_path: Path, make: Callable[[Path], bytes], reason: str) -> None:
    certificate, key = write_identity(Authority().ca.issue_cert("frontend"), tmp_path)
    key.write_bytes(make(key))
    with pytest.raises(FatalError) as raised:
        load_tls(settings(engine_client_cert=certificate, engine_client_key=key))
    assert_one_line(str(raised.value), f"--engine-client-key {key}: ", reason)


def test_a_bad_certificate_is_named(tmp_path: Path) -> None:
    certificate, key = write_identity(Authority().ca.issue_cert("frontend"), tmp_path)
    certificate.write_text("")
    with pytest.raises(FatalError) as raised:
        load_tls(settings(engine_client_cert=certificate, engine_client_key=key))
    assert_one_line(str(raised.value), f"--engine-client-cert {certificate}: ", "no certificate")


def test_a_certificate_without_its_key_is_a_wrong_setting() -> None:
    needed = ("--model", "m", "--block-size", "16", "--indexer", "a:1")
    for flag in ("--engine-client-cert", "--engine-client-key"):
        with pytest.raises(SettingsError, match="go together"):
            load_settings(
                FrontendSettings,
                service="frontend",
                argv=(*needed, flag, "/x"),
                environ={},
                description="d",
            )
