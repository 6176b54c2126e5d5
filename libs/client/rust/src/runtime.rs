//! The one I/O thread of the process, shared by all channels.
//!
//! It is made when first needed and never ended: at exit the operating system ends it, and there is
//! nothing that it could leave half done. A forked child has the parent's memory without its threads,
//! so the runtime is remembered together with the process that made it, and made anew in a child. The
//! parent's, of which the child has a useless copy, is leaked there.

use std::io;
use std::process;
use std::sync::{Mutex, PoisonError};

use tokio::runtime::{Builder, Handle};
use tonic::Status;

static CURRENT: Mutex<Option<(u32, Handle)>> = Mutex::new(None);

/// The I/O thread of this process.
///
/// # Errors
/// RESOURCE_EXHAUSTED: the operating system gives no thread or no event queue.
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
            // Dropping the parent's handle could touch its threads, which are not here.
            std::mem::forget(current.replace((process::id(), handle.clone())));
            Ok(handle)
        }
    }
}
