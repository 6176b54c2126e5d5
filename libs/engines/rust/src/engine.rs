//! The supported engines, and where each one's format is read.

use crate::event::{EventBatch, Refusal};
use crate::fields;
use crate::payload::{Field, RawEvent};
use crate::reader_state::ReaderState;
use crate::{sglang, vllm};

/// An engine whose events can be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Engine {
    /// vLLM from 0.10.2.
    Vllm,
    /// SGLang from 0.5.17.
    Sglang,
}

impl Engine {
    /// Every engine.
    pub const ALL: [Self; 2] = [Self::Vllm, Self::Sglang];

    /// The name in settings.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Vllm => "vllm",
            Self::Sglang => "sglang",
        }
    }

    /// The engine of this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|engine| engine.name() == name)
    }

    /// The order of the fields in this engine's array-shaped events, by type of event.
    pub(crate) const fn array_fields(self) -> fn(&str) -> &'static [Field] {
        match self {
            Self::Vllm => vllm::array_fields,
            Self::Sglang => sglang::array_fields,
        }
    }

    /// Reads a `BlockStored` into `batch`. The caller undoes what a refused event has appended.
    pub(crate) fn read_stored(
        self,
        state: &mut ReaderState,
        event: &RawEvent<'_>,
        batch: &mut EventBatch,
    ) -> Result<(), Refusal> {
        match self {
            Self::Vllm => vllm::read_stored(state, event, batch),
            Self::Sglang => sglang::read_stored(state, event, batch),
        }
    }

    /// Refuses a `BlockRemoved` that is not about indexed blocks.
    pub(crate) fn admit_removed(
        self,
        state: &ReaderState,
        event: &RawEvent<'_>,
    ) -> Result<(), Refusal> {
        match self {
            Self::Vllm => state.group.admit_hash_only(fields::group(event)?),
            Self::Sglang => Ok(()),
        }
    }
}
