//! TLS towards engines: whom the frontend trusts, and which certificate it shows.
//!
//! Every certificate is verified against the CAs and the engine's host name or IP address. There is no
//! way to turn that off.

use std::fmt;
use std::io;
use std::sync::Arc;

use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

/// The one protocol that is spoken with engines, so that a server that knows HTTP/2 does not choose it.
const ALPN: &[u8] = b"http/1.1";

/// Trust and identity of connections to `https://` engines; cheap to clone.
#[derive(Clone)]
pub struct EngineTls(TlsConnector);

/// A certificate chain and its private key, both PEM.
#[derive(Clone, Copy, Debug)]
pub struct Identity<'a> {
    /// The frontend's certificate, then those between it and its CA.
    pub certificates: &'a [u8],
    /// The private key, not encrypted.
    pub key: &'a [u8],
}

/// A PEM document that cannot be used. The text does not repeat its content.
#[derive(Debug)]
pub enum TlsError {
    /// The certificates of the CAs.
    Ca(String),
    /// The frontend's certificate.
    Certificate(String),
    /// The frontend's private key.
    Key(String),
}

impl fmt::Display for TlsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ca(reason) | Self::Certificate(reason) | Self::Key(reason) => f.write_str(reason),
        }
    }
}

impl std::error::Error for TlsError {}

impl EngineTls {
    /// Trusts the CAs in `ca`, or those of the system; shows `identity` to engines that ask for one.
    ///
    /// A system without CAs is no error here: each `https://` engine then fails to connect.
    ///
    /// # Errors
    /// A document cannot be used.
    pub fn new(ca: Option<&[u8]>, identity: Option<Identity<'_>>) -> Result<Self, TlsError> {
        let mut roots = RootCertStore::empty();
        match ca {
            Some(pem) => {
                for certificate in certificates(pem).map_err(TlsError::Ca)? {
                    roots.add(certificate).map_err(|_| {
                        TlsError::Ca("a certificate in it cannot be read".to_owned())
                    })?;
                }
            }
            None => {
                let system = rustls_native_certs::load_native_certs();
                roots.add_parsable_certificates(system.certs);
            }
        }
        let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| TlsError::Ca(error.to_string()))?
            .with_root_certificates(roots);
        let mut config = match identity {
            None => builder.with_no_client_auth(),
            Some(identity) => {
                let chain = certificates(identity.certificates).map_err(TlsError::Certificate)?;
                let key = PrivateKeyDer::from_pem_slice(identity.key).map_err(|_| {
                    TlsError::Key("there is no unencrypted private key in it".to_owned())
                })?;
                // It refuses a key of an unknown kind, and one of another certificate.
                builder.with_client_auth_cert(chain, key).map_err(|error| {
                    TlsError::Key(format!("it does not go with the certificate: {error}"))
                })?
            }
        };
        config.alpn_protocols = vec![ALPN.to_vec()];
        Ok(Self(Arc::new(config).into()))
    }

    /// Makes the handshake with the engine `host` over a fresh connection.
    ///
    /// # Errors
    /// The name cannot be in a certificate, the certificate is not trusted, or the connection failed.
    pub async fn connect(&self, host: &str, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        let name = ServerName::try_from(host.to_owned())
            .map_err(|_| io::Error::other("the host cannot be a certificate's name"))?;
        self.0.connect(name, stream).await
    }
}

fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let certificates = CertificateDer::pem_slice_iter(pem)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|_| "it is not PEM".to_owned())?;
    if certificates.is_empty() {
        return Err("there is no certificate in it".to_owned());
    }
    Ok(certificates)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BROKEN: &[u8] = b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";

    #[test]
    fn the_systems_cas_are_trusted_by_default() {
        assert!(EngineTls::new(None, None).is_ok());
    }

    #[test]
    fn a_document_that_cannot_be_used_is_named() {
        for (pem, reason) in [
            (&b""[..], "there is no certificate in it"),
            (b"no PEM at all", "there is no certificate in it"),
            (BROKEN, "a certificate in it cannot be read"),
            (&BROKEN[..50], "it is not PEM"),
        ] {
            let error = EngineTls::new(Some(pem), None).err().expect("an error");
            assert!(matches!(error, TlsError::Ca(_)));
            assert_eq!(error.to_string(), reason);
        }
        let identity = |certificates, key| {
            let identity = Identity { certificates, key };
            EngineTls::new(None, Some(identity))
                .err()
                .expect("an error")
        };
        assert!(matches!(identity(b"", b""), TlsError::Certificate(_)));
        assert!(matches!(identity(BROKEN, b""), TlsError::Key(_)));
    }
}
