//! The server's stop signal.

use std::time::Duration;

use tokio::sync::watch;
use tonic::Status;

/// None while the server runs; then its grace period.
pub type Stop = watch::Receiver<Option<Duration>>;

/// Waits until the server is told to stop, or has been dropped; returns the grace period.
pub async fn stopped(stop: &mut Stop) -> Duration {
    let grace = stop.wait_for(Option::is_some).await;
    grace.map_or(None, |grace| *grace).unwrap_or_default()
}

/// The status that ends calls of a stopping replica.
pub fn stopping() -> Status {
    Status::unavailable("this replica is stopping")
}
