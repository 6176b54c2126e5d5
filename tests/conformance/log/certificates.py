"""Certificates of our own making, for servers and clients."""

import datetime as dt
import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import trustme
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)


@dataclass
class Authority:
    """A CA, and the certificates that it signs."""

    ca: trustme.CA = field(default_factory=trustme.CA)

    def write(self, path: Path) -> Path:
        """Write the CA's certificate, as `ssl_ca_certs` takes it."""
        self.ca.cert_pem.write_to_path(path)
        return path

    def write_for_kafka(self, path: Path) -> Path:
        """Write a server's key and chain; Kafka reads keys in PKCS #8 only."""
        certificate = self.ca.issue_cert("127.0.0.1")
        key = load_pem_private_key(certificate.private_key_pem.bytes(), None)
        pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        path.write_bytes(pem + chain_of(certificate))
        return path

    def context(self, *names: str, not_after: dt.datetime | None = None) -> ssl.SSLContext:
        """Return the TLS context of a server with these names, valid until `not_after`."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        # Its types need an optional library.
        certificate: Any = self.ca.issue_cert(*names, not_after=not_after)
        certificate.configure_cert(context)
        return context

    def demand(self, context: ssl.SSLContext) -> None:
        """Let a server demand a certificate of this CA from its clients."""
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(cadata=self.ca.cert_pem.bytes().decode())


def write_identity(certificate: trustme.LeafCert, folder: Path) -> tuple[Path, Path]:
    """Write a client's certificate with its chain, and its key; return both paths."""
    paths = folder / "client.pem", folder / "client.key"
    paths[0].write_bytes(chain_of(certificate))
    paths[1].write_bytes(certificate.private_key_pem.bytes())
    return paths


def chain_of(certificate: trustme.LeafCert) -> bytes:
    """Return the certificate and its chain in PEM."""
    return b"".join(each.bytes() for each in certificate.cert_chain_pems)
