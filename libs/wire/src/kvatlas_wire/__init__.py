"""Generated protobuf code of kvatlas.v1, and the record framing of the event log."""

from kvatlas_wire.frame import FrameError, open_record, seal_record

__all__ = ["FrameError", "open_record", "seal_record"]
