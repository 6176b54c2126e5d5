//! Why a query has no answer, by who can act on it.

use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tonic::{Code, Status};

use crate::find_matches::CellTerms;

/// A call to one replica that ended with a gRPC status that is not OK.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The replica, host:port.
    pub replica: Arc<str>,
    /// The gRPC status.
    pub code: Code,
    /// The status in words.
    pub message: String,
}

/// A query without an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FindError {
    /// The deadline is over, or every replica failed: route without an answer.
    NoReplica {
        /// The query's deadline.
        deadline: Duration,
        /// One per replica tried, in order.
        failures: Vec<Failure>,
    },
    /// A replica serves another model, block size or hash contract: the configuration is wrong.
    CellMismatch {
        /// The replica, and the terms that it serves, in words.
        failure: Failure,
        /// The terms that were asked for.
        asked: Arc<CellTerms>,
    },
    /// A replica calls the query malformed; another replica would, too.
    QueryRejected(Failure),
}

impl Failure {
    /// The failure that a replica's status stands for.
    pub fn new(replica: &Arc<str>, status: &Status) -> Self {
        Self {
            replica: Arc::clone(replica),
            code: status.code(),
            message: status.message().to_owned(),
        }
    }

    /// Returns the error if the query itself is wrong, not the replica; else the failure again.
    pub fn into_final(self, terms: &Arc<CellTerms>) -> Result<FindError, Self> {
        match self.code {
            Code::FailedPrecondition => Ok(FindError::CellMismatch {
                failure: self,
                asked: Arc::clone(terms),
            }),
            Code::InvalidArgument => Ok(FindError::QueryRejected(self)),
            _ => Err(self),
        }
    }
}

impl FindError {
    /// All failures, in order; never empty unless there was no time for any attempt.
    pub fn failures(&self) -> &[Failure] {
        match self {
            Self::NoReplica { failures, .. } => failures,
            Self::CellMismatch { failure, .. } | Self::QueryRejected(failure) => {
                std::slice::from_ref(failure)
            }
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let code = i32::from(self.code);
        write!(f, "{}: {} (gRPC status {code})", self.replica, self.message)
    }
}

impl fmt::Display for FindError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoReplica { deadline, failures } => {
                // Microseconds, so that a deadline in floating-point seconds shows no rounding.
                let deadline_ms = (deadline.as_secs_f64() * 1e6).round() / 1e3;
                write!(f, "no replica answered within {deadline_ms} ms: ")?;
                for (i, failure) in failures.iter().enumerate() {
                    write!(f, "{}{failure}", if i > 0 { "; " } else { "" })?;
                }
                if failures.is_empty() {
                    write!(f, "none could be tried")?;
                }
                Ok(())
            }
            Self::CellMismatch { failure, asked } => {
                let Failure {
                    replica, message, ..
                } = failure;
                write!(f, "{replica}: {message} (asked for {asked})")
            }
            Self::QueryRejected(failure) => failure.fmt(f),
        }
    }
}

impl Error for FindError {}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure(code: Code, message: &str) -> Failure {
        Failure {
            replica: "r9:1".into(),
            code,
            message: message.to_owned(),
        }
    }

    fn terms() -> Arc<CellTerms> {
        Arc::new(CellTerms {
            model: "m".into(),
            block_size: 16,
            hash_contract: "c".into(),
        })
    }

    #[test]
    fn a_wrong_query_is_final() {
        let mismatch = failure(Code::FailedPrecondition, "serves x").into_final(&terms());
        assert_eq!(
            mismatch.unwrap().to_string(),
            "r9:1: serves x (asked for model 'm', block size 16, hash contract 'c')"
        );
        let rejected = failure(Code::InvalidArgument, "too long").into_final(&terms());
        assert_eq!(
            rejected.unwrap().to_string(),
            "r9:1: too long (gRPC status 3)"
        );
    }

    #[test]
    fn a_replicas_own_trouble_is_not_final() {
        for code in (0..=16).map(Code::from) {
            let expected = !matches!(code, Code::FailedPrecondition | Code::InvalidArgument);
            let outcome = failure(code, "why").into_final(&terms());
            assert_eq!(outcome.is_err(), expected, "{code:?}");
        }
    }

    #[test]
    fn no_answer_names_the_deadline_and_every_failure() {
        let error = |deadline_ms: f64, failures| {
            let deadline = Duration::from_secs_f64(deadline_ms / 1e3);
            FindError::NoReplica { deadline, failures }.to_string()
        };
        let two = vec![
            failure(Code::Unavailable, "not ready"),
            failure(Code::DeadlineExceeded, "no answer"),
        ];
        assert_eq!(
            error(50.0, two),
            "no replica answered within 50 ms: \
             r9:1: not ready (gRPC status 14); r9:1: no answer (gRPC status 4)"
        );
        assert_eq!(
            error(0.3, vec![]),
            "no replica answered within 0.3 ms: none could be tried"
        );
    }
}
