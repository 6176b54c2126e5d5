//! State files: a captured state, with the checksum of its bytes.

use std::fs::File;
use std::io::{self, BufWriter, Read, Write};
use std::path::Path;

use arrow_ipc::writer::FileWriter;
use xxhash_rust::xxh3::Xxh3;

use super::capture::StateCapture;
use super::dump::io_error;
use crate::cell::Cell;

/// A state file as it was written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SavedState {
    /// Length of the file.
    pub bytes: u64,
    /// XXH3-64 of all bytes, seed 0.
    pub checksum: u64,
    /// Number of workers, including those whose engines have gone.
    pub workers: u64,
    /// Number of blocks, each once per holder and tier.
    pub memberships: u64,
}

/// Captures the cell's state, writes it into a new file, and syncs the file.
///
/// # Errors
/// Those of the file system; then a part of the file may be there.
pub fn save(cell: &Cell, path: &Path) -> io::Result<SavedState> {
    let mut capture = StateCapture::begin(cell);
    capture.read_part(cell, 0, 1);
    let mut dump = capture.finish(cell);
    let file = ChecksummedFile {
        file: BufWriter::with_capacity(1 << 20, File::create_new(path)?),
        bytes: 0,
        hash: Xxh3::new(),
    };
    let mut writer = FileWriter::try_new(file, dump.schema()).map_err(io_error)?;
    for batch in dump.by_ref() {
        writer.write(&batch?).map_err(io_error)?;
    }
    writer.finish().map_err(io_error)?;
    let ChecksummedFile { file, bytes, hash } = writer.into_inner().map_err(io_error)?;
    let file = file.into_inner().map_err(|error| error.into_error())?;
    file.sync_all()?;
    Ok(SavedState {
        bytes,
        checksum: hash.digest(),
        workers: dump.workers(),
        memberships: dump.memberships(),
    })
}

/// XXH3-64 of all bytes of a file.
pub(super) fn checksum_of(file: &mut File) -> io::Result<u64> {
    let mut hash = Xxh3::new();
    let mut buffer = vec![0; 1 << 20];
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(hash.digest()),
            length => hash.update(&buffer[..length]),
        }
    }
}

/// A file that hashes the bytes written to it.
struct ChecksummedFile {
    file: BufWriter<File>,
    bytes: u64,
    hash: Xxh3,
}

impl Write for ChecksummedFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.file.write(bytes)?;
        self.hash.update(&bytes[..written]);
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}
