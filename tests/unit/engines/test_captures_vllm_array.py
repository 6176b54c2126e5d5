"""vLLM's array-shaped events: every message of the captures, against literals."""

from collections.abc import Callable
from typing import Any

Read = Callable[[str, int], dict[str, Any]]


def block(first: int) -> list[int]:
    """Sixteen consecutive token ids, as all of these captures' blocks are."""
    return list(range(first, first + 16))


DIGEST_A = 0x000102030405060708090A0B0C0D0E0F101112131415161718191A1B1C1D1E1F
DIGEST_B = 0x202122232425262728292A2B2C2D2E2F303132333435363738393A3B3C3D3E3F
TWO = [17411065762075480533, 6944508719707228417]
CLEARED = ("cleared", None)

COMMON = {
    "stored_two_blocks": (
        0,
        0,
        [("stored", TWO, None, [block(1000), block(1016)], "DEVICE", None, None, None)],
    ),
    "stored_child": (
        1,
        0,
        [
            (
                "stored",
                [17],
                6944508719707228417,
                [block(70000)],
                "DEVICE",
                None,
                None,
                None,
            )
        ],
    ),
    "stored_bytes_hash": (
        4,
        0,
        [("stored", [DIGEST_A], DIGEST_B, [block(0)], "DEVICE", None, None, None)],
    ),
    "removed": (5, 0, [("removed", TWO, "DEVICE")]),
    "mixed_batch": (
        6,
        0,
        [
            ("removed", [17], "DEVICE"),
            ("stored", [17], None, [block(0)], "DEVICE", None, None, None),
            CLEARED,
        ],
    ),
    "cleared": (7, 0, [CLEARED]),
}


def test_0_10_2_knows_neither_adapter_names_nor_salts(read_capture: Read) -> None:
    assert read_capture("vllm-0.10.2", 16) == COMMON | {
        "stored_lora": (2, 0, [("unindexable", "lora_id_without_name", 1)]),
        "stored_salt_mm": (
            3,
            0,
            [
                (
                    "stored",
                    [4294967296, 200],
                    None,
                    [block(0), block(16)],
                    "DEVICE",
                    None,
                    None,
                    None,
                )
            ],
        ),
    }


def test_0_23_0_names_adapters_and_groups(read_capture: Read) -> None:
    assert read_capture("vllm-0.23.0", 16) == COMMON | {
        "stored_lora": (
            2,
            0,
            [
                (
                    "stored",
                    [9223372036854775808],
                    None,
                    [block(0)],
                    "DEVICE",
                    "sql-adapter",
                    None,
                    None,
                )
            ],
        ),
        "stored_salt_mm": (3, 0, [("unindexable", "other_group", 2)]),
    }


def test_0_24_0_says_the_same_in_maps(read_capture: Read) -> None:
    assert read_capture("vllm-0.24.0", 16) == read_capture("vllm-0.23.0", 16)
    assert read_capture("vllm-0.24.0", 16)["stored_lora"] == (
        2,
        0,
        [("stored", [9223372036854775808], None, [block(0)], "DEVICE", "sql-adapter", None, None)],
    )


def test_another_block_size_is_told_with_the_engines_number(read_capture: Read) -> None:
    assert read_capture("vllm-0.24.0", 32)["stored_two_blocks"] == (
        0,
        0,
        [("unindexable", "wrong_block_size", 2)],
    )
