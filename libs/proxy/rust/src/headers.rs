//! Which headers pass, in each direction.

use http::{HeaderMap, HeaderName, HeaderValue, header};
use memchr::memmem;

use crate::exchange::{EngineAddress, Forward};

/// Client to engine: what describes the client's connection, and what is set anew.
const DROPPED_UPSTREAM: [HeaderName; 14] = [
    header::CONNECTION,
    header::EXPECT,
    HeaderName::from_static("keep-alive"),
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    HeaderName::from_static("proxy-connection"),
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    // The body goes up decompressed.
    header::CONTENT_ENCODING,
    header::CONTENT_LENGTH,
    header::HOST,
    // The usage in a compressed answer could not be read.
    header::ACCEPT_ENCODING,
];

/// Engine to client: all others could name the engine.
const PASSED_DOWNSTREAM: [HeaderName; 6] = [
    header::CACHE_CONTROL,
    header::CONTENT_ENCODING,
    header::CONTENT_LANGUAGE,
    header::CONTENT_TYPE,
    header::RETRY_AFTER,
    HeaderName::from_static("x-request-id"),
];

/// Passes on the headers for the engine: the client's, less those of its connection, with the router's on top.
pub fn upstream(
    client: &HeaderMap,
    forward: &Forward,
    mut pass: impl FnMut(&HeaderName, &HeaderValue),
) {
    let named: Vec<&[u8]> = client
        .get_all(header::CONNECTION)
        .iter()
        .flat_map(|value| value.as_bytes().split(|&byte| byte == b','))
        .map(<[u8]>::trim_ascii)
        .collect();
    let is_named = |name: &HeaderName| {
        named
            .iter()
            .any(|each| each.eq_ignore_ascii_case(name.as_str().as_bytes()))
    };
    let set = &forward.request_headers;
    for (name, value) in client {
        if !DROPPED_UPSTREAM.contains(name)
            && !name.as_str().starts_with("x-kvatlas-")
            && !is_named(name)
            && !set.iter().any(|(each, _)| each == name)
        {
            pass(name, value);
        }
    }
    for (name, value) in set {
        pass(name, value);
    }
}

/// The headers for the client: those of the engine's that pass, and the router's.
pub fn downstream(engine: &HeaderMap, forward: &Forward) -> HeaderMap {
    let mut headers = HeaderMap::with_capacity(PASSED_DOWNSTREAM.len() + 5);
    for name in &PASSED_DOWNSTREAM {
        for value in engine.get_all(name) {
            if !mentions(&forward.engine, value.as_bytes()) {
                headers.append(name, value.clone());
            }
        }
    }
    for (name, value) in &forward.answer_headers {
        headers.insert(name, value.clone());
    }
    headers
}

/// Whether an answer is a stream of server-sent events.
pub fn is_event_stream(engine: &HeaderMap) -> bool {
    engine
        .get(header::CONTENT_TYPE)
        .is_some_and(|value| value.as_bytes().starts_with(b"text/event-stream"))
}

/// Whether a text contains an engine's address.
///
/// An IP address or a host name with a dot counts anywhere. A bare name such as `vllm` may also be an ordinary word, so it
/// counts only where it is written as an address.
pub fn mentions(engine: &EngineAddress, text: &[u8]) -> bool {
    let EngineAddress { host, port, .. } = engine;
    let host = host.trim_matches(['[', ']']);
    let contains = |needle: &str| memmem::find(text, needle.as_bytes()).is_some();
    if host.contains(['.', ':']) {
        return contains(host);
    }
    contains(&format!("{host}:{port}")) || contains(&format!("//{host}"))
}

/// `Host` of a request to an engine.
pub fn host_of(engine: &EngineAddress) -> String {
    let EngineAddress { host, port, .. } = engine;
    if host.contains(':') && !host.starts_with('[') {
        format!("[{host}]:{port}")
    } else {
        format!("{host}:{port}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn forward(host: &str) -> Forward {
        Forward {
            engine: EngineAddress {
                host: host.to_owned(),
                port: 8_000,
                is_tls: false,
            },
            target: "/".to_owned(),
            request_headers: vec![(
                HeaderName::from_static("x-data-parallel-rank"),
                HeaderValue::from_static("3"),
            )],
            answer_headers: Vec::new(),
            begin_bytes: 0,
        }
    }

    fn headers(pairs: &[(&str, &str)]) -> HeaderMap {
        pairs
            .iter()
            .map(|(name, value)| {
                (
                    name.parse().expect("a name"),
                    value.parse().expect("a value"),
                )
            })
            .collect::<Vec<(HeaderName, HeaderValue)>>()
            .into_iter()
            .collect()
    }

    #[test]
    fn headers_of_the_clients_connection_stay_behind() {
        let client = headers(&[
            ("authorization", "Bearer x"),
            ("x-custom", "kept"),
            ("connection", "keep-alive, X-Hop"),
            ("x-hop", "dropped"),
            ("x-kvatlas-worker", "1/1"),
            ("x-data-parallel-rank", "9"),
            ("accept-encoding", "gzip"),
            ("host", "front"),
        ]);
        let mut passed = Vec::new();
        upstream(&client, &forward("engine"), |name, value| {
            passed.push(format!("{name}: {}", value.to_str().expect("ASCII")));
        });
        passed.sort_unstable();
        assert_eq!(
            passed,
            [
                "authorization: Bearer x",
                "x-custom: kept",
                "x-data-parallel-rank: 3"
            ]
        );
    }

    #[test]
    fn an_engines_headers_come_down_without_its_address() {
        let engine = headers(&[
            ("content-type", "application/json"),
            ("server", "uvicorn"),
            ("x-request-id", "10.0.0.1:8000-7"),
            ("set-cookie", "a=b"),
        ]);
        let down = downstream(&engine, &forward("10.0.0.1"));
        assert_eq!(down.len(), 1);
        assert_eq!(downstream(&engine, &forward("10.0.0.2")).len(), 2);
    }

    #[test]
    fn a_bare_name_is_an_address_only_where_it_is_written_as_one() {
        let engine = forward("vllm").engine;
        assert!(!mentions(&engine, b"vllm cannot do that"));
        assert!(mentions(&engine, b"at vllm:8000"));
        assert!(mentions(&engine, b"http://vllm/v1"));
    }
}
