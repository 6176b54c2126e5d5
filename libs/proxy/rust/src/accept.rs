//! Accepts from a listening socket that several processes share, so that each has as many connections as the others.
//!
//! Left to the kernel, one process often takes a whole burst of new connections and keeps them for as long as they last.
//! So each process publishes how many it has open, in memory that all of them map. The one with the fewest accepts at once;
//! the others give way for up to a millisecond first, in case it is busy, stopped or dead. A connection that nobody has
//! accepted stays in the socket's queue, whatever happens to a process.
//!
//! Each process writes its own line of the memory alone, in atomic words. Lines are read one after another, so two
//! processes may accept where one would do: that is off by one connection and does no harm.
//!
//! Sound: the only unsafe call hands a listener to tokio, which then owns it; a `TcpListener` keeps its descriptor for life.

use std::io;
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use tokio::io::unix::AsyncFd;
use tokio::runtime::Builder;
use tokio::sync::{mpsc, oneshot};

/// Words of a line: as many as fill a cache line, so that processes do not slow one another.
pub const LINE_WORDS: usize = 8;
/// Word of a line: connections open in this process.
const OPEN: usize = 0;
/// Word of a line: the turn of the last accepted connection. Among equals the least recent one accepts.
const TURN: usize = 1;
/// Word of a line: 1 while the process accepts.
const ACCEPTING: usize = 2;
/// Word of a line, written by whoever watches over the processes: 1 if this one does not answer.
const HUNG: usize = 3;

/// After the system has refused a connection, for lack of descriptors for instance.
pub(crate) const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
const GIVE_WAY_STEP: Duration = Duration::from_micros(100);
const GIVE_WAY_STEPS: usize = 10;

/// The connections of all processes that share a listening socket, as this process sees and counts them.
pub struct ConnectionLines {
    words: &'static [AtomicU64],
    own: usize,
}

impl ConnectionLines {
    /// `words`: a line of [`LINE_WORDS`] for each process; `own`: the number of this one's line.
    ///
    /// # Errors
    /// There is no such line, or a part of one.
    pub fn new(words: &'static [AtomicU64], own: usize) -> io::Result<Self> {
        if words.len() % LINE_WORDS != 0 || own >= words.len() / LINE_WORDS {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        Ok(Self { words, own })
    }

    fn line(&self) -> &[AtomicU64] {
        &self.words[self.own * LINE_WORDS..][..LINE_WORDS]
    }

    /// Whether another process should accept the next connection: it has fewer, or as many and waited longer.
    fn is_ahead(&self) -> bool {
        let rank = |line: &[AtomicU64]| {
            let open = line[OPEN].load(Ordering::Relaxed);
            (open, line[TURN].load(Ordering::Relaxed))
        };
        let own = rank(self.line());
        self.words.chunks_exact(LINE_WORDS).any(|line| {
            line[ACCEPTING].load(Ordering::Relaxed) == 1
                && line[HUNG].load(Ordering::Relaxed) == 0
                && rank(line) < own
        })
    }

    fn set_accepting(&self, is_accepting: bool) {
        self.line()[ACCEPTING].store(u64::from(is_accepting), Ordering::Relaxed);
    }

    /// Counts a connection as open until the returned value is dropped.
    fn opened(self: &Arc<Self>) -> OpenConnection {
        let line = self.line();
        let last = self.words.chunks_exact(LINE_WORDS);
        let last = last.map(|line| line[TURN].load(Ordering::Relaxed)).max();
        line[OPEN].fetch_add(1, Ordering::Relaxed);
        line[TURN].store(last.unwrap_or(0) + 1, Ordering::Relaxed);
        OpenConnection(Arc::clone(self))
    }
}

/// A connection that counts as open.
pub struct OpenConnection(Arc<ConnectionLines>);

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.0.line()[OPEN].fetch_sub(1, Ordering::Relaxed);
    }
}

/// A listening socket that other processes have too.
pub struct SharedListener {
    listener: TcpListener,
    lines: Arc<ConnectionLines>,
}

impl SharedListener {
    /// The socket must listen already.
    ///
    /// # Errors
    /// The descriptor is no such socket.
    pub fn new(listener: TcpListener, lines: ConnectionLines) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        listener.local_addr()?;
        let lines = Arc::new(lines);
        Ok(Self { listener, lines })
    }

    pub(crate) fn listener(&self) -> &TcpListener {
        &self.listener
    }

    /// Accepts on a thread of its own, until the returned [`Acceptor`] is stopped or dropped.
    pub(crate) fn start(self) -> io::Result<Acceptor> {
        let runtime = Builder::new_current_thread().enable_io().build()?;
        // One only: connections that this process has no time for are left to others.
        let (give, accepted) = mpsc::channel(1);
        let (stop, stopped) = oneshot::channel();
        thread::Builder::new()
            .name("kvatlas-accept".to_owned())
            .spawn(move || {
                let Self { listener, lines } = self;
                lines.set_accepting(true);
                let accepting = accept(listener, &lines, give);
                let ended = runtime.block_on(async {
                    tokio::select! {
                        ended = accepting => ended,
                        _ = stopped => Ok(()),
                    }
                });
                lines.set_accepting(false);
                if let Err(error) = ended {
                    // Only a descriptor that is no socket gets here.
                    eprintln!("kvatlas proxy: {error}");
                }
            })?;
        Ok(Acceptor {
            accepted,
            _stop: stop,
        })
    }
}

/// The receiving end of the accepting thread.
pub(crate) struct Acceptor {
    pub accepted: mpsc::Receiver<(TcpStream, OpenConnection)>,
    /// Dropping it stops the thread.
    _stop: oneshot::Sender<()>,
}

async fn accept(
    listener: TcpListener,
    lines: &Arc<ConnectionLines>,
    give: mpsc::Sender<(TcpStream, OpenConnection)>,
) -> io::Result<()> {
    // SAFETY: the listener is owned by what it is registered with, and keeps its descriptor.
    let listener = unsafe { AsyncFd::register(listener) }?;
    loop {
        // Before accepting: a connection is taken out of the queue only once this process has room for it.
        let Ok(place) = give.reserve().await else {
            return Ok(());
        };
        let mut ready = listener.readable().await?;
        for _ in 0..GIVE_WAY_STEPS {
            if !lines.is_ahead() {
                break;
            }
            thread::sleep(GIVE_WAY_STEP); // nothing else runs on this thread
        }
        match ready.try_io(|listener| listener.get_ref().accept()) {
            Ok(Ok((stream, _))) => place.send((stream, lines.opened())),
            Ok(Err(_)) => thread::sleep(ACCEPT_PAUSE),
            Err(_) => {} // another process was faster
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(processes: usize) -> Vec<Arc<ConnectionLines>> {
        let words: Vec<AtomicU64> = (0..processes * LINE_WORDS)
            .map(|_| AtomicU64::new(0))
            .collect();
        let words: &'static [AtomicU64] = words.leak();
        let lines = (0..processes).map(|own| Arc::new(ConnectionLines::new(words, own).unwrap()));
        let lines: Vec<_> = lines.collect();
        for line in &lines {
            line.set_accepting(true);
        }
        lines
    }

    fn first(lines: &[Arc<ConnectionLines>]) -> Vec<usize> {
        (0..lines.len())
            .filter(|&own| !lines[own].is_ahead())
            .collect()
    }

    #[test]
    fn among_equals_they_take_turns() {
        let lines = lines(3);
        let mut taken = [0; 3];
        for _ in 0..9 {
            let next = first(&lines)[0];
            taken[next] += 1;
            drop(lines[next].opened()); // closed before the next one comes
        }
        assert_eq!(taken, [3, 3, 3]);
        assert_eq!(first(&lines).len(), 1);
    }

    #[test]
    fn the_one_with_the_fewest_connections_is_first() {
        let lines = lines(2);
        let held: Vec<_> = (0..3).map(|_| lines[0].opened()).collect();
        let other = lines[1].opened();
        assert_eq!(first(&lines), [1]);
        drop(held);
        assert_eq!(first(&lines), [0]);
        drop(other);
    }

    #[test]
    fn nobody_waits_for_a_process_that_does_not_accept() {
        let lines = lines(2);
        let _held = lines[0].opened();
        assert_eq!(first(&lines), [1]);
        lines[1].set_accepting(false);
        assert_eq!(first(&lines), [0, 1]);
        lines[1].set_accepting(true);
        lines[1].line()[HUNG].store(1, Ordering::Relaxed);
        assert!(!lines[0].is_ahead());
    }

    #[test]
    fn a_line_that_is_not_there_is_refused() {
        let words: &'static [AtomicU64] = Vec::leak(
            (0..LINE_WORDS * 2 + 1)
                .map(|_| AtomicU64::new(0))
                .collect::<Vec<_>>(),
        );
        assert!(ConnectionLines::new(words, 0).is_err());
        assert!(ConnectionLines::new(&words[..LINE_WORDS * 2], 2).is_err());
        assert!(ConnectionLines::new(&words[..LINE_WORDS * 2], 1).is_ok());
    }
}
