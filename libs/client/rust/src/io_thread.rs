//! The one I/O thread of the process, shared by all channels.
//!
//! It is started when first needed and runs until the process exits; nothing on it needs a clean end.
//! A forked child has the parent's memory without its threads. So the runtime is stored with the id of
//! its process, and a child starts its own. The child leaks its useless copy of the parent's runtime.

use std::io;
use std::process;
use std::sync::{Mutex, PoisonError};

use tokio::runtime::{Builder, Handle};
use tonic::Status;

static CURRENT: Mutex<Option<(u32, Handle)>> = Mutex::new(None);

/// Returns the I/O thread of this process.
///
/// # Errors
/// RESOURCE_EXHAUSTED: the system has no thread or no event queue left.
pub fn open() -> Result<Handle, Status> {
    handle().map_err(|error| Status::resource_exhausted(format!("no I/O thread: {error}")))
}

fn handle() -> io::Result<Handle> {
    let mut current = CURRENT.lock().unwrap_or_else(PoisonError::into_inner);
    match &*current {
        Some((pid, handle)) if *pid == process::id() => Ok(handle.clone()),
        _ => {
            let runtime = Builder::new_multi_thread()
                .worker_threads(1)
                .thread_name("kvatlas-client")
                .enable_io()
                .enable_time()
                .build()?;
            let handle = Box::leak(Box::new(runtime)).handle().clone();
            // Dropping the parent's handle could touch its threads, which do not exist here.
            std::mem::forget(current.replace((process::id(), handle.clone())));
            Ok(handle)
        }
    }
}
