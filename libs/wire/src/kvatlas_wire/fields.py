"""Encodes single protobuf fields, to append large arrays without a Python object per element."""


def bytes_field(number: int, content: bytes) -> bytes:
    """Return the wire bytes of a length-delimited field: bytes, a message, or a packed array.

    A packed array of fixed64 is its elements in little-endian order.
    """
    length = len(content)
    head = bytearray([number << 3 | 2])  # wire type 2: length-delimited
    while length > 0x7F:  # noqa: PLR2004 - a varint has seven bits a byte
        head.append(length & 0x7F | 0x80)
        length >>= 7
    head.append(length)
    return bytes(head) + content
