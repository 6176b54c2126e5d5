//! Parses the head of a request, strictly: what two servers could read in two ways is refused.
//!
//! `httparse` splits the head into lines; the rules about framing are here, because a request with two lengths, a folded
//! line or a bare line feed is how one request is smuggled inside another (RFC 9112, sections 2.2, 5.2, 6.3 and 11.2).

use bytes::{Buf, Bytes, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use memchr::{memchr, memmem};

use crate::error::Refused;
use crate::limits::Limits;

/// How long the body of a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// Exactly so many bytes follow.
    Length(usize),
    /// Chunks follow.
    Chunked,
}

/// The head of a request.
#[derive(Debug)]
pub struct Head {
    pub method: Method,
    /// Always begins with a slash; of an absolute URI only the path is kept.
    pub path: String,
    /// Without the question mark.
    pub query: String,
    pub headers: HeaderMap,
    pub framing: Framing,
    /// The connection ends with the answer.
    pub closes: bool,
    /// HTTP/1.0: the client knows no chunks.
    pub is_http10: bool,
    /// The client waits for `100 Continue` before it sends the body.
    pub expects_continue: bool,
}

/// Takes a head off the front of `buffer`; none: it is not complete yet.
///
/// # Errors
/// The request is refused and its connection must end, because nobody knows where the next request begins.
pub fn take_head(buffer: &mut BytesMut, limits: &Limits) -> Result<Option<Head>, Refused> {
    // A client may send an empty line before a request (RFC 9112, section 2.2).
    while buffer.starts_with(b"\r\n") {
        buffer.advance(2);
    }
    let Some(end) = memmem::find(buffer, b"\r\n\r\n").map(|at| at + 4) else {
        check_lines(buffer)?;
        if buffer.len() > limits.head_bytes_max {
            return Err(head_too_large(limits));
        }
        return Ok(None);
    };
    if end > limits.head_bytes_max {
        return Err(head_too_large(limits));
    }
    let raw = buffer.split_to(end).freeze();
    check_lines(&raw)?;
    parse(&raw, limits).map(Some)
}

fn head_too_large(limits: &Limits) -> Refused {
    Refused::new(
        StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
        "headers_too_large",
        format!(
            "The head of the request is larger than {} bytes or {} headers",
            limits.head_bytes_max, limits.headers_max
        ),
    )
}

/// Refuses a line feed without a carriage return: `httparse` takes it for the end of a line, others do not.
fn check_lines(bytes: &[u8]) -> Result<(), Refused> {
    let mut from = 0;
    while let Some(at) = memchr(b'\n', &bytes[from..]).map(|at| from + at) {
        if at == 0 || bytes[at - 1] != b'\r' {
            return Err(Refused::malformed(
                "A line of the request's head ends with a bare line feed",
            ));
        }
        from = at + 1;
    }
    Ok(())
}

fn parse(raw: &Bytes, limits: &Limits) -> Result<Head, Refused> {
    let mut slots = vec![httparse::EMPTY_HEADER; limits.headers_max];
    let mut request = httparse::Request::new(&mut slots);
    match request.parse(raw) {
        Ok(httparse::Status::Complete(_)) => {}
        Err(httparse::Error::TooManyHeaders) => return Err(head_too_large(limits)),
        Err(httparse::Error::Version) => return Err(bad_version()),
        _ => return Err(Refused::malformed("The head of the request is malformed")),
    }
    let method = Method::from_bytes(request.method.unwrap_or("").as_bytes())
        .map_err(|_| Refused::malformed("The method of the request is malformed"))?;
    let is_http10 = request.version == Some(0);
    let (path, query) = split_target(request.path.unwrap_or(""))?;
    let mut headers = HeaderMap::with_capacity(request.headers.len());
    for each in request.headers.iter() {
        let name = HeaderName::from_bytes(each.name.as_bytes())
            .map_err(|_| Refused::malformed("The name of a header is malformed"))?;
        // No copy: the value shares the head's bytes.
        let value = HeaderValue::from_maybe_shared(raw.slice_ref(each.value))
            .map_err(|_| Refused::malformed("The value of a header is malformed"))?;
        headers.append(name, value);
    }
    if !is_http10 && headers.get_all(header::HOST).iter().count() != 1 {
        return Err(Refused::malformed(
            "The request needs exactly one Host header",
        ));
    }
    let framing = framing(&headers, is_http10)?;
    let expects_continue = match headers.get(header::EXPECT) {
        None => false,
        Some(value) if value.as_bytes().eq_ignore_ascii_case(b"100-continue") => !is_http10,
        Some(_) => {
            return Err(Refused::new(
                StatusCode::EXPECTATION_FAILED,
                "bad_expectation",
                "The only expectation that is met is 100-continue",
            ));
        }
    };
    let closes = is_http10 || names_token(&headers, &header::CONNECTION, "close");
    Ok(Head {
        method,
        path,
        query,
        headers,
        framing,
        closes,
        is_http10,
        expects_continue,
    })
}

fn bad_version() -> Refused {
    Refused::new(
        StatusCode::HTTP_VERSION_NOT_SUPPORTED,
        "bad_version",
        "The version of the request is neither HTTP/1.1 nor HTTP/1.0",
    )
}

/// Path and query of a request target. A path that begins with two slashes stays one path: it names no host.
fn split_target(target: &str) -> Result<(String, String), Refused> {
    let path = if target.starts_with('/') || target == "*" {
        target
    } else if let Some(rest) = strip_scheme(target) {
        match rest.find(['/', '?']) {
            Some(at) if rest.as_bytes()[at] == b'/' => &rest[at..],
            Some(at) => return Ok(("/".to_owned(), rest[at + 1..].to_owned())),
            None => "/",
        }
    } else {
        return Err(Refused::malformed(
            "The target of the request is neither a path nor an absolute URI",
        ));
    };
    let (path, query) = path.split_once('?').unwrap_or((path, ""));
    Ok((path.to_owned(), query.to_owned()))
}

fn strip_scheme(target: &str) -> Option<&str> {
    let (scheme, rest) = target.split_once("://")?;
    (scheme.eq_ignore_ascii_case("http") || scheme.eq_ignore_ascii_case("https")).then_some(rest)
}

fn framing(headers: &HeaderMap, is_http10: bool) -> Result<Framing, Refused> {
    let mut lengths = headers.get_all(header::CONTENT_LENGTH).iter();
    let mut codings = headers.get_all(header::TRANSFER_ENCODING).iter();
    match (lengths.next(), codings.next()) {
        (None, None) => Ok(Framing::Length(0)),
        (Some(_), Some(_)) => Err(Refused::malformed(
            "The request has both Content-Length and Transfer-Encoding",
        )),
        (Some(length), None) => {
            if lengths.next().is_some() {
                return Err(Refused::malformed(
                    "The request has more than one Content-Length",
                ));
            }
            parse_length(length.as_bytes())
                .map(Framing::Length)
                .ok_or_else(|| Refused::malformed("The Content-Length is no number of bytes"))
        }
        (None, Some(coding)) => {
            let is_chunked = coding.as_bytes().eq_ignore_ascii_case(b"chunked");
            if is_http10 || !is_chunked || codings.next().is_some() {
                return Err(Refused::malformed(
                    "The only Transfer-Encoding that is understood is chunked, of HTTP/1.1",
                ));
            }
            Ok(Framing::Chunked)
        }
    }
}

/// A Content-Length: digits only, no sign, no list.
pub fn parse_length(text: &[u8]) -> Option<usize> {
    if text.is_empty() || !text.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// Whether a header that lists tokens names this one.
pub fn names_token(headers: &HeaderMap, name: &HeaderName, token: &str) -> bool {
    headers.get_all(name).iter().any(|value| {
        value
            .as_bytes()
            .split(|&byte| byte == b',')
            .any(|each| each.trim_ascii().eq_ignore_ascii_case(token.as_bytes()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(text: &str) -> Result<Option<Head>, Refused> {
        take_head(&mut BytesMut::from(text.as_bytes()), &Limits::default())
    }

    fn whole(text: &str) -> Head {
        take(text).expect("valid").expect("complete")
    }

    fn status(text: &str) -> u16 {
        take(text).expect_err("refused").status.as_u16()
    }

    #[test]
    fn a_head_is_taken_once_it_is_complete_and_leaves_what_follows() {
        let text =
            "\r\nPOST /v1/completions?a=b HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc";
        for cut in 0..text.len() - 4 {
            assert!(take(&text[..cut]).expect("valid so far").is_none(), "{cut}");
        }
        let mut buffer = BytesMut::from(text.as_bytes());
        let head = take_head(&mut buffer, &Limits::default())
            .expect("valid")
            .expect("complete");
        assert_eq!(buffer, "abc");
        assert_eq!(head.method, Method::POST);
        assert_eq!(
            (head.path.as_str(), head.query.as_str()),
            ("/v1/completions", "a=b")
        );
        assert_eq!(head.framing, Framing::Length(3));
        assert!(!head.closes && !head.is_http10 && !head.expects_continue);
    }

    #[test]
    fn targets() {
        for (target, path, query) in [
            ("/", "/", ""),
            ("//v1/models", "//v1/models", ""),
            ("http://host:1/v1/models?x", "/v1/models", "x"),
            ("HTTPS://host", "/", ""),
            ("http://host?x=1", "/", "x=1"),
            ("*", "*", ""),
            ("/a?b?c", "/a", "b?c"),
        ] {
            let head = whole(&format!("GET {target} HTTP/1.1\r\nHost: x\r\n\r\n"));
            assert_eq!(
                (head.path.as_str(), head.query.as_str()),
                (path, query),
                "{target}"
            );
        }
        assert_eq!(status("CONNECT host:443 HTTP/1.1\r\nHost: x\r\n\r\n"), 400);
        assert_eq!(status("GET models HTTP/1.1\r\nHost: x\r\n\r\n"), 400);
    }

    #[test]
    fn what_two_servers_could_read_in_two_ways_is_refused() {
        for headers in [
            "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n",
            "Transfer-Encoding: chunked\r\nContent-Length: 3\r\n",
            "Content-Length: 3\r\nContent-Length: 3\r\n",
            "Content-Length: 3, 3\r\n",
            "Content-Length: +3\r\n",
            "Content-Length: 0x3\r\n",
            "Content-Length:\r\n",
            "Content-Length: 99999999999999999999999\r\n",
            "Content-Length: 3\nX: y\r\n",
            "Content-Length: 3\r\n folded\r\n",
            "X: y\r\n\tfolded\r\n",
            "X : y\r\n",
            "X: a\0b\r\n",
            "Transfer-Encoding: gzip, chunked\r\n",
            "Transfer-Encoding: identity\r\n",
            "Transfer-Encoding: xchunked\r\n",
            "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
            "Host: y\r\n",
        ] {
            assert_eq!(
                status(&format!("POST / HTTP/1.1\r\nHost: x\r\n{headers}\r\n")),
                400,
                "{headers}"
            );
        }
        assert_eq!(status("GET / HTTP/1.1\r\n\r\n"), 400);
        assert_eq!(status("GET / HTTP/1.1\nHost: x\n\n"), 400);
        assert_eq!(status("GET  / HTTP/1.1\r\nHost: x\r\n\r\n"), 400);
        assert_eq!(
            status("POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n"),
            400
        );
        assert_eq!(status("\x16\x03\x01\x02\n"), 400);
        assert_eq!(status("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), 505);
        assert_eq!(
            status("GET / HTTP/1.1\r\nHost: x\r\nExpect: magic\r\n\r\n"),
            417
        );
    }

    #[test]
    fn large_heads_are_refused_as_soon_as_they_pass_the_limit() {
        let long = format!("GET / HTTP/1.1\r\nHost: x\r\nX: {}", "a".repeat(40_000));
        assert_eq!(status(&long), 431);
        assert_eq!(status(&format!("{long}\r\n\r\n")), 431);
        let many = "X: y\r\n".repeat(200);
        assert_eq!(
            status(&format!("GET / HTTP/1.1\r\nHost: x\r\n{many}\r\n")),
            431
        );
    }

    #[test]
    fn connections_end_where_the_client_says_so() {
        assert!(whole("GET / HTTP/1.0\r\n\r\n").closes);
        assert!(whole("GET / HTTP/1.1\r\nHost: x\r\nConnection: x, Close\r\n\r\n").closes);
        assert!(!whole("GET / HTTP/1.1\r\nHost: x\r\nConnection: keep-alive\r\n\r\n").closes);
        assert!(
            whole("POST / HTTP/1.1\r\nHost: x\r\nExpect: 100-Continue\r\n\r\n").expects_continue
        );
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes: Vec<u8>) {
            drop(take_head(&mut BytesMut::from(&bytes[..]), &Limits::default()));
        }
    }
}
