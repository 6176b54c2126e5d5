"""Reads requests that are passed on by load: all that matters is which model they name."""

from email.message import Message
from typing import Final

import msgspec

from kvatlas_frontend.api.body import OpaquePrompt, ParsedBody, decoding
from kvatlas_frontend.api.reasons import Reason

_MODEL_BYTES_MAX: Final = 1024


class _Named(msgspec.Struct):
    model: str | None = None


_decode = msgspec.json.Decoder(_Named).decode


def parse_passed(content_type: str, body: bytes) -> ParsedBody:
    """Read the model's name from a JSON object, or from the field `model` of a form.

    Raises:
        RefusedError: 400; neither JSON nor a form, or `model` is no text.
    """
    if content_type.lower().startswith("multipart/form-data"):
        return passed_to(_form_model(content_type, body))
    with decoding():
        return passed_to(_decode(body).model)


def passed_to(model: str | None) -> ParsedBody:
    """A request for `model` whose body says nothing else to routing."""
    return ParsedBody(
        model=model, stream=False, cache_salt=None, prompt=OpaquePrompt(Reason.NO_PROMPT), batch=True
    )  # fmt: skip


def _form_model(content_type: str, body: bytes) -> str | None:
    """The field `model` of a form (RFC 7578); None: there is none, and the engine judges the form.

    Files are skipped unread, so an audio file costs one search for the boundary.
    """
    header = Message()
    header["content-type"] = content_type
    boundary = header.get_boundary()
    if not boundary:
        return None
    delimiter = b"\r\n--" + boundary.encode("latin-1", "replace")
    start = 0 if body.startswith(delimiter[2:]) else body.find(delimiter)
    while start >= 0:
        head_end = body.find(b"\r\n\r\n", start)
        if head_end < 0:
            return None
        end = body.find(delimiter, head_end + 2)
        if end < 0:
            return None
        if _is_model(body[start:head_end]) and end - head_end <= _MODEL_BYTES_MAX:
            return body[head_end + 4 : end].decode(errors="replace")
        start = end
    return None


def _is_model(head: bytes) -> bool:
    """Whether a part's header lines, behind the boundary's, are those of the field `model`."""
    for line in head.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"content-disposition":
            part = Message()
            part["content-disposition"] = value.decode("latin-1").strip()
            named = part.get_param("name", header="content-disposition")
            return named == "model" and part.get_filename() is None
    return False
