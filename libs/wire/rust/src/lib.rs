//! The protobuf messages and gRPC stubs of kvatlas.v1, and the record framing of the event log.

pub mod columns;
pub mod frame;
pub mod protobuf;

/// Messages and gRPC stubs, generated from `protos/kvatlas/v1`.
#[allow(missing_docs, clippy::all)] // generated; the protos have the documentation
pub mod v1 {
    tonic::include_proto!("kvatlas.v1");
    /// The encoded descriptors, for server reflection.
    pub const DESCRIPTORS: &[u8] =
        include_bytes!(concat!(env!("OUT_DIR"), "/kvatlas_descriptor.bin"));
}
