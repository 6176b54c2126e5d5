//! Reads request traces in the format of the Mooncake project, as far as an index needs them.
//!
//! A line is one request: its arrival, the length of its prompt in tokens, and one id for every 512
//! tokens. An id stands for the whole prefix up to its end; the last id for the rest of the prompt.

use std::collections::HashMap;
use std::io::BufRead;

use serde_json::Value;

/// Tokens that one id of a published trace stands for.
pub const ID_TOKENS: u32 = 512;

/// Ids are made into keys by a multiply and an add; this leaves them room.
const ID_END: u64 = 1 << 53;

/// One request.
#[derive(Clone, PartialEq, Debug)]
pub struct Request {
    /// When it came, ms from any origin.
    pub timestamp_ms: f64,
    /// One id and its tokens after another: `ID_TOKENS` each, the last at most that.
    pub ids: Vec<(u64, u32)>,
    /// Equal for requests of one session.
    pub session: Session,
}

/// The rule that groups requests into sessions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Session {
    /// The first id that is no hub.
    Id(u64),
    /// None such: a request by itself, by its place in the trace.
    Alone(u64),
}

/// The requests of a trace, by arrival; equal arrivals in the order of the file.
#[derive(Clone, PartialEq, Debug)]
pub struct Trace {
    /// At least one.
    pub requests: Vec<Request>,
    /// Above every id.
    pub stride: u64,
}

impl Trace {
    /// Reads a trace. A hub is an id in more than `hub_share` of all prompts; `without_hubs` leaves hubs
    /// out of the prompts.
    ///
    /// # Errors
    /// One line that names the first malformed one.
    pub fn read(source: impl BufRead, hub_share: f64, without_hubs: bool) -> Result<Self, String> {
        let mut requests = Vec::new();
        for (at, line) in source.lines().enumerate() {
            let place = |problem: String| format!("line {}: {problem}", at + 1);
            let line = line.map_err(|error| place(error.to_string()))?;
            if !line.trim().is_empty() {
                requests.push(request(&line).map_err(place)?);
            }
        }
        if requests.is_empty() {
            return Err("it holds no request".to_owned());
        }
        requests.sort_by(|a, b| a.timestamp_ms.total_cmp(&b.timestamp_ms));
        let ids = requests.iter().flat_map(|request| &request.ids);
        let stride = ids.map(|&(id, _)| id + 1).max().unwrap_or(1);
        let hubs = hubs(&requests, hub_share);
        for (place, request) in requests.iter_mut().enumerate() {
            let is_hub = |&(id, _): &(u64, u32)| hubs.contains_key(&id);
            let first = request.ids.iter().find(|entry| !is_hub(entry));
            request.session =
                first.map_or(Session::Alone(place as u64), |&(id, _)| Session::Id(id));
            if without_hubs {
                request.ids.retain(|entry| !is_hub(entry));
            }
        }
        Ok(Self { requests, stride })
    }
}

/// Ids in more than that share of all prompts, with the number of prompts.
fn hubs(requests: &[Request], share: f64) -> HashMap<u64, usize> {
    let mut prompts: HashMap<u64, usize> = HashMap::new();
    for request in requests {
        let mut ids: Vec<u64> = request.ids.iter().map(|&(id, _)| id).collect();
        ids.sort_unstable();
        ids.dedup();
        for id in ids {
            *prompts.entry(id).or_default() += 1;
        }
    }
    let least = share * requests.len() as f64;
    prompts.retain(|_, &mut count| count as f64 > least);
    prompts
}

fn request(line: &str) -> Result<Request, String> {
    let fields: Value = serde_json::from_str(line).map_err(|error| format!("no JSON ({error})"))?;
    let timestamp_ms = fields["timestamp"]
        .as_f64()
        .filter(|&ms| ms >= 0.0)
        .ok_or("timestamp is no time in milliseconds")?;
    let tokens = fields["input_length"]
        .as_u64()
        .filter(|&tokens| tokens > 0)
        .ok_or("input_length is no whole number from 1")?;
    let ids = fields["hash_ids"].as_array().ok_or("hash_ids is no list")?;
    let needed = tokens.div_ceil(u64::from(ID_TOKENS));
    if ids.len() as u64 != needed {
        let given = ids.len();
        return Err(format!(
            "input_length {tokens} takes {needed} hash_ids of {ID_TOKENS} tokens, there are {given}"
        ));
    }
    let mut left = tokens;
    let ids = ids.iter().map(|id| {
        let here = left.min(u64::from(ID_TOKENS)) as u32;
        left -= u64::from(here);
        let known = id.as_u64().filter(|&id| id < ID_END);
        Ok((
            known.ok_or_else(|| format!("hash_ids holds {id}, not a whole number from 0"))?,
            here,
        ))
    });
    Ok(Request {
        timestamp_ms,
        ids: ids.collect::<Result<_, String>>()?,
        session: Session::Alone(0),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(lines: &str, without_hubs: bool) -> Result<Trace, String> {
        Trace::read(lines.as_bytes(), 0.5, without_hubs)
    }

    const THREE: &str = r#"
{"timestamp": 3000, "input_length": 1030, "output_length": 1, "hash_ids": [0, 8, 9]}
{"timestamp": 0, "input_length": 700, "output_length": 1, "hash_ids": [0, 1]}
{"timestamp": 3000, "input_length": 512, "output_length": 1, "hash_ids": [0]}
"#;

    #[test]
    fn a_session_is_the_first_id_that_is_no_hub() {
        let trace = read(THREE, false).unwrap();
        let sessions: Vec<Session> = trace.requests.iter().map(|r| r.session).collect();
        assert_eq!(
            sessions,
            [Session::Id(1), Session::Id(8), Session::Alone(2)]
        );
        assert_eq!(trace.requests[1].ids, [(0, 512), (8, 512), (9, 6)]);
        assert_eq!(trace.stride, 10);
    }

    #[test]
    fn without_hubs_the_rest_of_a_prompt_stays() {
        let trace = read(THREE, true).unwrap();
        assert_eq!(trace.requests[1].ids, [(8, 512), (9, 6)]);
        assert!(trace.requests[2].ids.is_empty());
    }

    #[test]
    fn a_malformed_line_is_named() {
        let error = |line: &str| read(&format!("\n{line}\n"), false).unwrap_err();
        assert!(read("\n", false).unwrap_err().contains("no request"));
        assert!(error("{").contains("line 2: no JSON"));
        assert!(error("[]").contains("timestamp"));
        assert!(error(r#"{"timestamp": 1, "hash_ids": []}"#).contains("input_length"));
        let bad = |ids: &str| {
            error(&format!(
                r#"{{"timestamp": 1, "input_length": 513, "hash_ids": {ids}}}"#
            ))
        };
        assert!(bad("[1]").contains("takes 2 hash_ids"));
        assert!(bad("[1, -1]").contains("holds -1"));
        assert!(bad("3").contains("no list"));
    }
}
