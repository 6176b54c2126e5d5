//! The requests of a load: templates from a file, with new text each time.
//!
//! A line of the file is a JSON body. Each run of 16 `@` in it is a mark. It is replaced by a word that no
//! earlier request had, the same at all marks of a request. Marks keep the body's length.

use std::path::Path;

/// A mark in a template.
const MARK: &[u8] = b"@@@@@@@@@@@@@@@@";

/// A request whose marks are at known places.
struct Template {
    bytes: Vec<u8>,
    marks: Vec<usize>,
}

/// All templates; hands out requests in turn.
pub struct Requests {
    templates: Vec<Template>,
    next: usize,
    word: u64,
}

impl Requests {
    /// Reads the file; `seed` chooses the words.
    ///
    /// # Errors
    /// If it cannot be read or has no line.
    pub fn read(file: &Path, path: &str, seed: u64) -> Result<Self, String> {
        let text = std::fs::read(file).map_err(|error| format!("{}: {error}", file.display()))?;
        let bodies = text.split(|&byte| byte == b'\n');
        let templates: Vec<Template> = bodies
            .filter(|body| !body.is_empty())
            .map(|body| Template::new(path, body))
            .collect();
        if templates.is_empty() {
            return Err(format!("{}: no request", file.display()));
        }
        Ok(Self {
            templates,
            next: 0,
            word: seed,
        })
    }

    /// Writes the next request into `out`.
    pub fn write_next(&mut self, out: &mut Vec<u8>) {
        let template = &self.templates[self.next];
        self.next = (self.next + 1) % self.templates.len();
        out.clear();
        out.extend_from_slice(&template.bytes);
        self.word = self.word.wrapping_add(1);
        let word = hex(mix(self.word));
        for &mark in &template.marks {
            out[mark..mark + MARK.len()].copy_from_slice(&word);
        }
    }
}

impl Template {
    fn new(path: &str, body: &[u8]) -> Self {
        let mut bytes = format!(
            "POST {path} HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\n\r\n",
            body.len()
        )
        .into_bytes();
        bytes.extend_from_slice(body);
        let marks = memchr::memmem::find_iter(&bytes, MARK).collect();
        Self { bytes, marks }
    }
}

/// A one-to-one mixing function (SplitMix64), so that different numbers give different words.
fn mix(number: u64) -> u64 {
    let mut mixed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

fn hex(number: u64) -> [u8; 16] {
    std::array::from_fn(|place| b"0123456789abcdef"[(number >> (60 - 4 * place)) as usize & 0xf])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_request_has_one_new_word_at_all_its_marks() {
        let file = std::env::temp_dir().join(format!("requests-{}", std::process::id()));
        let mark = String::from_utf8(MARK.to_vec()).unwrap();
        std::fs::write(
            &file,
            format!("{{\"a\":\"{mark}\",\"b\":\"{mark}\"}}\n{{}}\n"),
        )
        .unwrap();
        let mut requests = Requests::read(&file, "/v1/x", 7).unwrap();
        std::fs::remove_file(&file).unwrap();
        assert_eq!(requests.templates.len(), 2);
        let mut words = Vec::new();
        for _ in 0..3 {
            let mut out = Vec::new();
            requests.write_next(&mut out);
            let text = String::from_utf8(out).unwrap();
            let (head, body) = text.split_once("\r\n\r\n").unwrap();
            assert!(head.starts_with("POST /v1/x HTTP/1.1\r\n"));
            assert!(head.ends_with(&format!("Content-Length: {}", body.len())));
            let word = body[6..22].to_owned();
            assert_eq!(body, format!("{{\"a\":\"{word}\",\"b\":\"{word}\"}}"));
            assert!(word != mark && !words.contains(&word));
            words.push(word);
            requests.write_next(&mut Vec::new());
        }
        assert!(Requests::read(Path::new("/nowhere"), "/", 1).is_err());
    }
}
