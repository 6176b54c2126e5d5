"""Generated protobuf code of kvatlas.v1, and the record framing of the event log."""
