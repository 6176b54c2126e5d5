//! The URI of a method on a server.

use http::Uri;
use http::uri::{Authority, Parts, PathAndQuery, Scheme};
use tonic::Status;

/// Checks that `address` is `host:port`.
///
/// # Errors
/// INVALID_ARGUMENT: it is not.
pub fn check_address(address: &str) -> Result<(), Status> {
    uri(address, "/").map(drop)
}

/// Returns the URI of the method at `path` on the server at `host:port`.
///
/// # Errors
/// INVALID_ARGUMENT: `address` is not `host:port`.
pub fn uri(address: &str, path: &'static str) -> Result<Uri, Status> {
    let invalid = || Status::invalid_argument(format!("'{address}' is not host:port"));
    let authority: Authority = address.parse().map_err(|_| invalid())?;
    if authority.port().is_none() || authority.host().is_empty() {
        return Err(invalid());
    }
    let mut parts = Parts::default();
    parts.scheme = Some(Scheme::HTTP);
    parts.authority = Some(authority);
    parts.path_and_query = Some(PathAndQuery::from_static(path));
    Uri::from_parts(parts).map_err(|_| invalid())
}
