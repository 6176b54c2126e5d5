//! The protobuf messages and gRPC stubs of kvatlas.v1, and the record framing of the event log.
