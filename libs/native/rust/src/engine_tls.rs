//! Binding of the data plane's TLS towards engines.

use kvatlas_proxy::{EngineTls, Identity, TlsError};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// Whom the frontend trusts at `https://` engines, and which certificate it shows.
#[pyclass(frozen, name = "EngineTls", module = "kvatlas_native")]
pub struct PyEngineTls {
    /// For the servers that use it.
    pub tls: EngineTls,
}

#[pymethods]
impl PyEngineTls {
    #[new]
    #[pyo3(signature = (*, ca, certificate, key))]
    fn new(ca: Option<&[u8]>, certificate: Option<&[u8]>, key: Option<&[u8]>) -> PyResult<Self> {
        let identity = match (certificate, key) {
            (Some(certificates), Some(key)) => Some(Identity { certificates, key }),
            (None, None) => None,
            _ => {
                return Err(PyValueError::new_err(
                    "a certificate and its key go together",
                ));
            }
        };
        let tls = EngineTls::new(ca, identity).map_err(|error| {
            let document = match &error {
                TlsError::Ca(_) => "ca",
                TlsError::Certificate(_) => "certificate",
                TlsError::Key(_) => "key",
            };
            PyValueError::new_err((document, error.to_string()))
        })?;
        Ok(Self { tls })
    }
}
