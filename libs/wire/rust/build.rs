//! Generates the messages and stubs from the repository's protos with a pure-Rust parser, so that
//! no system protoc is needed.

use std::{env, error::Error, fs, path::PathBuf};

fn main() -> Result<(), Box<dyn Error>> {
    let protos = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?).join("../../../protos");
    let files = ["events", "indexer", "publisher"]
        .map(|name| protos.join(format!("kvatlas/v1/{name}.proto")));
    for file in &files {
        println!("cargo:rerun-if-changed={}", file.display());
    }
    let descriptors = protox::compile(&files, [&protos])?;
    let out = PathBuf::from(env::var("OUT_DIR")?);
    fs::write(
        out.join("kvatlas_descriptor.bin"),
        prost::Message::encode_to_vec(&descriptors),
    )?;
    tonic_prost_build::configure().compile_fds(descriptors)?;
    Ok(())
}
