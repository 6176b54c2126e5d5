"""Loads the files of TLS towards engines, for the data plane and for requests of Python's own."""

import ssl
from dataclasses import dataclass
from pathlib import Path

from kvatlas_chassis import FatalError
from kvatlas_frontend.settings import FrontendSettings
from kvatlas_native import EngineTls


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """The same trust and the same certificate, for both users."""

    data_plane: EngineTls
    context: ssl.SSLContext


def load_tls(settings: FrontendSettings) -> TlsSettings:
    """Load the files that the settings name; without any, the system's CAs are trusted.

    Raises:
        FatalError: a file cannot be used; one line names it and its flag.
    """
    files = {
        "ca": ("--engine-ca-file", settings.engine_ca_file),
        "certificate": ("--engine-client-cert", settings.engine_client_cert),
        "key": ("--engine-client-key", settings.engine_client_key),
    }
    documents = {name: _read(flag, path) for name, (flag, path) in files.items()}
    try:
        data_plane = EngineTls(
            ca=documents["ca"], certificate=documents["certificate"], key=documents["key"]
        )
    except ValueError as error:
        document, reason = error.args
        flag, path = files[document]
        raise FatalError(f"{flag} {path}: {reason}") from None
    return TlsSettings(data_plane, _context(settings))


def _read(flag: str, path: Path | None) -> bytes | None:
    if path is None:
        return None
    try:
        return path.read_bytes()
    except OSError as error:
        raise FatalError(f"{flag} {path}: {error.strerror}") from None


def _context(settings: FrontendSettings) -> ssl.SSLContext:
    """The same for aiohttp; OpenSSL may refuse what the data plane takes."""
    try:
        context = ssl.create_default_context(cafile=settings.engine_ca_file)
    except OSError as error:
        raise FatalError(f"--engine-ca-file {settings.engine_ca_file}: {error}") from None
    certificate, key = settings.engine_client_cert, settings.engine_client_key
    if certificate is not None:
        try:
            context.load_cert_chain(certificate, key)
        except OSError as error:
            raise FatalError(f"--engine-client-cert {certificate}: {error}") from None
    context.set_alpn_protocols(["http/1.1"])
    return context
