//! The one PyO3 extension of kvatlas. A binding extracts its arguments, releases the GIL, calls a
//! pure crate and wraps the answer; it decides nothing.

mod arrivals;
mod cell;
mod completions;
mod duration;
mod engine_tls;
mod event_queue;
mod find_matches;
mod finder;
mod hashing;
mod ingest;
mod listener;
mod memory;
mod mirror;
mod outbox;
mod prompts;
mod proxy;
mod restore;
mod subscriber;

#[pyo3::pymodule]
mod _native {
    #[pymodule_export]
    use crate::cell::{Applied, Cell, CellServer, LagReport, RecoveryRequest, SavedState};
    #[pymodule_export]
    use crate::completions::{ChannelError, CompletionQueue, FindMatchesError};
    #[pymodule_export]
    use crate::engine_tls::PyEngineTls;
    #[pymodule_export]
    use crate::find_matches::{PyMatches, PyQuery};
    #[pymodule_export]
    use crate::finder::{PyFinder, PyReplicas, check_address};
    #[pymodule_export]
    use crate::hashing::{chunk_hashes, sequence_hashes};
    #[pymodule_export]
    use crate::ingest::{IngestStream, PyIngestResponse, progress};
    #[pymodule_export]
    use crate::listener::PySharedListener;
    #[pymodule_export]
    use crate::memory::MirrorMemory;
    #[pymodule_export]
    use crate::mirror::{ApplyOutcome, EngineMirror, payload_dp_rank};
    #[pymodule_export]
    use crate::outbox::Outbox;
    #[pymodule_export]
    use crate::prompts::{
        PyCacheStats, PyPromptReader, PyReadPrompt, PyTemplateRenderer, PyTextEncoder,
    };
    #[pymodule_export]
    use crate::proxy::{Arrived, Ended, Failed, FirstByte, Proxy, PyExchange, Refused};
    #[pymodule_export]
    use crate::restore::{Restore, RestoreRefused, Restored};
    #[pymodule_export]
    use crate::subscriber::EngineSubscriber;
}
