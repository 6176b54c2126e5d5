//! Converts a worker, without its set, to and from its message in a state.

use kvatlas_events::sequencer::{
    Incarnation, Limits, ResumePoint, Sequencer, SequencerState, ShutdownReason,
};
use kvatlas_index::{SlotId, WorkerKey};
use kvatlas_wire::v1;
use kvatlas_wire::v1::worker_resume::{Heard, Standing};

use crate::leases::lease::LastHeard;
use crate::leases::logs::Logs;
use crate::workers::worker::Worker;
use crate::workers::worker_set::WorkerSet;

/// Everything that another replica, or the next process of this one, needs of the worker besides its set.
pub(super) fn to_message(worker: &Worker, logs: &Logs) -> v1::WorkerResume {
    let point = worker.sequencer.resume_point();
    let standing = match point.state {
        SequencerState::Whole => Standing::Whole,
        SequencerState::Recovering => Standing::Recovering,
        SequencerState::Closed(ShutdownReason::EngineGone) => Standing::EngineGone,
        SequencerState::Closed(ShutdownReason::PublisherLeaving) => Standing::PublisherLeaving,
    };
    let heartbeats: Vec<_> = worker.last_heartbeat.unix_ms_by_transport(logs).collect();
    let heard = worker.lease.last_record.unix_ms_by_transport(logs);
    let heard = heard.map(|(transport, appended_unix_ms)| {
        let mut heartbeats = heartbeats.iter();
        let heartbeat = heartbeats.find(|(name, _)| *name == transport);
        Heard {
            transport: transport.to_owned(),
            appended_unix_ms,
            beat_unix_ms: heartbeat.map_or(0, |&(_, at)| at),
        }
    });
    v1::WorkerResume {
        instance_id: point.incarnation.instance,
        known_event_id: point.known,
        standing: standing.into(),
        base_lost: point.base_lost,
        opened_empty: point.opened_empty,
        heartbeat: Some(worker.heartbeat.clone()),
        heard: heard.collect(),
    }
}

/// The point from which the worker's sequencer goes on; None: this build does not know the message's standing.
pub(super) fn resume_point(
    epoch: u64,
    applied: u64,
    resume: &v1::WorkerResume,
) -> Option<ResumePoint> {
    let state = match resume.standing() {
        Standing::Unspecified => return None,
        Standing::Whole => SequencerState::Whole,
        Standing::Recovering => SequencerState::Recovering,
        Standing::EngineGone => SequencerState::Closed(ShutdownReason::EngineGone),
        Standing::PublisherLeaving => SequencerState::Closed(ShutdownReason::PublisherLeaving),
    };
    Some(ResumePoint {
        incarnation: Incarnation {
            epoch,
            instance: resume.instance_id,
        },
        applied,
        known: resume.known_event_id,
        state,
        base_lost: resume.base_lost,
        opened_empty: resume.opened_empty,
    })
}

/// The worker of the message, with its set in `slot`, not matched yet. Restores the time of the logs that this replica
/// reads, too.
pub(super) fn to_worker(
    key: WorkerKey,
    limits: Limits,
    point: ResumePoint,
    slot: Option<SlotId>,
    resume: v1::WorkerResume,
    logs: &mut Logs,
    now_ms: u64,
) -> Worker {
    let is_gone = point.state == SequencerState::Closed(ShutdownReason::EngineGone);
    let mut worker = Worker::new(key, limits);
    worker.sequencer = Sequencer::resume(limits, point, now_ms);
    worker.set = WorkerSet::new(key, slot);
    worker.heartbeat = resume.heartbeat.unwrap_or_default();
    worker.engine_gone_since_ms = is_gone.then_some(now_ms);
    let mut note = |last: &mut LastHeard, transport: &str, at_ms: u64| {
        if let Some(log) = logs.find(transport).filter(|_| at_ms > 0) {
            last.note(log, at_ms);
            logs.restore_append(log, at_ms, now_ms);
        }
    };
    for heard in resume.heard {
        let Heard {
            transport,
            appended_unix_ms,
            beat_unix_ms,
        } = heard;
        note(&mut worker.lease.last_record, &transport, appended_unix_ms);
        note(&mut worker.last_heartbeat, &transport, beat_unix_ms);
    }
    worker
}
