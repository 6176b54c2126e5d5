//! A worker's place, out of one replica and into another: what a snapshot keeps of it besides its set.

use kvatlas_events::sequencer::{Closing, Limits, Place, Sequencer, Speaker, Standing};
use kvatlas_index::{SlotId, WorkerKey};
use kvatlas_wire::v1;
use kvatlas_wire::v1::worker_resume::Standing as Named;

use super::{Surroundings, Worker};
use crate::lease::{Heard, Logs};

impl Worker {
    /// Where its set lies; none while it has no set.
    pub fn slot(&self) -> Option<SlotId> {
        self.slot
    }

    /// What another replica, or this one's next process, needs to go on with it.
    pub fn resume(&self, logs: &Logs) -> v1::WorkerResume {
        let place = self.sequencer.place();
        let standing = match place.standing {
            Standing::Whole => Named::Whole,
            Standing::Recovering => Named::Recovering,
            Standing::Closed(Closing::EngineGone) => Named::EngineGone,
            Standing::Closed(Closing::PublisherLeaving) => Named::PublisherLeaving,
        };
        let beats: Vec<_> = self.beat.marks(logs).collect();
        let heard = self.heard.marks(logs);
        v1::WorkerResume {
            instance_id: place.speaker.instance,
            known_event_id: place.known,
            standing: standing.into(),
            base_lost: place.base_lost,
            opened_empty: place.opened_empty,
            heartbeat: Some(self.facts.clone()),
            heard: heard
                .map(|(transport, appended_unix_ms)| v1::worker_resume::Heard {
                    transport: transport.to_owned(),
                    appended_unix_ms,
                    beat_unix_ms: beats
                        .iter()
                        .find(|(name, _)| *name == transport)
                        .map_or(0, |&(_, at)| at),
                })
                .collect(),
        }
    }

    /// The worker as [`Self::resume`] told it, with its set in `slot`. It is shown by the first call
    /// of [`Self::look`].
    pub fn resumed(
        key: WorkerKey,
        limits: Limits,
        place: Place,
        slot: Option<SlotId>,
        resume: v1::WorkerResume,
        now_ms: u64,
    ) -> Self {
        let closed = place.standing == Standing::Closed(Closing::EngineGone);
        Self {
            sequencer: Sequencer::resumed(limits, place, now_ms),
            slot,
            facts: resume.heartbeat.unwrap_or_default(),
            gone_since_ms: closed.then_some(now_ms),
            ..Self::new(key, limits)
        }
    }

    /// Note when it was heard last, by the logs that this replica reads too.
    pub fn heard_before(
        &mut self,
        heard: &[v1::worker_resume::Heard],
        logs: &mut Logs,
        now_ms: u64,
    ) {
        let mut note = |marks: &mut Heard, transport: &str, at: u64| {
            if let Some(place) = logs.known_place(transport).filter(|_| at > 0) {
                marks.note(place, at);
                logs.resume(place, at, now_ms);
            }
        };
        for mark in heard {
            note(&mut self.heard, &mark.transport, mark.appended_unix_ms);
            note(&mut self.beat, &mark.transport, mark.beat_unix_ms);
        }
    }

    /// Judge its lease and show it, if it may be: all logs' times are known.
    pub fn look(&mut self, around: &mut Surroundings<'_>, logs: &Logs) {
        self.renew(around, logs);
        self.settle(around);
    }
}

/// Where a sequencer goes on; none if the standing is none that we know.
pub(crate) fn place(epoch: u64, applied: u64, resume: &v1::WorkerResume) -> Option<Place> {
    let standing = match resume.standing() {
        Named::Unspecified => return None,
        Named::Whole => Standing::Whole,
        Named::Recovering => Standing::Recovering,
        Named::EngineGone => Standing::Closed(Closing::EngineGone),
        Named::PublisherLeaving => Standing::Closed(Closing::PublisherLeaving),
    };
    Some(Place {
        speaker: Speaker {
            epoch,
            instance: resume.instance_id,
        },
        applied,
        known: resume.known_event_id,
        standing,
        base_lost: resume.base_lost,
        opened_empty: resume.opened_empty,
    })
}
