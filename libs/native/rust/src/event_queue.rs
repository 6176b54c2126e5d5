//! A queue from native threads to an event loop, which waits for its descriptor to become readable.

use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Events on their way to an event loop. One byte in the pipe stands for all that wait.
pub struct EventQueue<T> {
    waiting: Mutex<Vec<T>>,
    signal: UnixStream,
    readable: UnixStream,
}

impl<T> EventQueue<T> {
    pub fn new() -> io::Result<Self> {
        let (readable, signal) = UnixStream::pair()?;
        readable.set_nonblocking(true)?;
        signal.set_nonblocking(true)?;
        Ok(Self {
            waiting: Mutex::default(),
            signal,
            readable,
        })
    }

    /// Adds one, and wakes the event loop if it is the first.
    pub fn push(&self, event: T) {
        let mut waiting = self.lock();
        waiting.push(event);
        if waiting.len() == 1 {
            // It is lost if the queue is gone.
            drop((&self.signal).write(&[1]));
        }
    }

    /// Takes all that wait.
    pub fn take(&self) -> Vec<T> {
        let mut waiting = self.lock();
        // Under the lock: else this read could also take the signal of a later event.
        let mut signals = [0; 16];
        drop((&self.readable).read(&mut signals));
        std::mem::take(&mut *waiting)
    }

    /// The descriptor that is readable while events wait.
    pub fn descriptor(&self) -> RawFd {
        self.readable.as_raw_fd()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<T>> {
        // Only a push happens under the lock, so a panic cannot leave the list half changed.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
