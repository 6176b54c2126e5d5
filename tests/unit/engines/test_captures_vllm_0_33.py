"""vLLM 0.33's own block pool and publisher: every message of the captures, against literals."""

from collections.abc import Callable
from typing import Any

import pytest

Read = Callable[[str, int], dict[str, Any]]

ITEM_A = 3305025233846988428  # XXH3-64 of the 64 letters "a"
ITEM_B = 2562596441444134736  # XXH3-64 of the 64 letters "b"
CLEARED = ("cleared", None)

INT_HASHES = {
    "prompt": [
        3753563854825738204,
        2378715151359315973,
        4593614550377271087,
        935822303561933385,
    ],
    "decoded": [4376953722342760545],
    "salted": [18147331685154060173, 2380472750242789184],
    "lora": [18039714302291994740, 5333308381604402439],
    "images": [2345060152367612579, 10045945560259911020, 1660016598949493332],
    "lookahead": [13412982307758711748, 14886875493875885383],
}
BYTES_HASHES = {
    "prompt": [
        0x9D9C413731095D0EE811A14814414907CAFCCD751CE2052F659E8E1F547AEB68,
        0x6EAB5151EE783EC014728198AE09F5B0C20F18673FF098BCEC4F29BEB1E71E61,
        0xCAF3FC6B0A70CEBAAAE638E8451AB3A5AFB03FBA4AB9ED391DCF2E6CA4DADF06,
        0xDCECB26759FE58A7E6DB684CB3A4AE1C25B7B8DBFF751C6AAA6D61563C41D31D,
    ],
    "decoded": [0x1F60421858C29ADA4F01491C24DE68B733D1099C0EEA36FDB9C7B62A5348EA61],
    "salted": [
        0x4840B13A4DF1932AA9C7EE836986A9307AA3011E1DA278E90B38267A56BBE22D,
        0x21D1A80E3F5BE6A530F7092B00E3DD90388D2014623F1F25814826D3DEDEBE9E,
    ],
    "lora": [
        0x0C6A1E13ED1C07F2B1C94748EEEF4051EF0F1FFED10DD21F822B279FA09A03BF,
        0x44C6BDAC288477088C95A63EDCF97A4C0BC22D204A965A91567F3E0EC49FA1DF,
    ],
    "images": [
        0x805B99B5AEE1DE701EA9F5F66EC75ACD5446583068D3AA05C53F7BDB9220F7F7,
        0xE0645C5315EA718179BB702934842E21A2C3F7E87FE2346E3DC0B01C9F19CCC9,
        0xB335F9EF1D7C40303E04321A78DE35494726BB2F8D4AAB1554AB66972FFF882E,
    ],
    "lookahead": [
        0x0B3F3EC71AE94F4274B5C34F59FE0E246718D93B3D433ED9B3EEFCBCC0B67406,
        0x3DDD380B2C7B060997B66C09A51C5C64D45BEA058E05D316AA2440731EB00D2D,
    ],
}


def block(first: int) -> list[int]:
    return list(range(first, first + 16))


IMAGE_BLOCKS = [
    [5] * 8 + [151655] * 8,
    [151655] * 16,
    [151655] * 6 + [40, 41, 42, 43, 44, 45, 46, 47, 48, 49],
]


def expected(hashes: dict[str, list[int]]) -> dict[str, Any]:
    prompt, images = hashes["prompt"], hashes["images"]
    return {
        "prefill_4_full_blocks": (
            0,
            [
                (
                    "stored",
                    prompt,
                    None,
                    [block(1000), block(1016), block(1032), block(1048)],
                    "DEVICE",
                    None,
                    None,
                    None,
                )
            ],
        ),
        "decode_completes_block": (
            1,
            [
                (
                    "stored",
                    hashes["decoded"],
                    prompt[3],
                    [[1064, 1065, 1066, 1067, 1068, 1069, *range(2000, 2010)]],
                    "DEVICE",
                    None,
                    None,
                    None,
                )
            ],
        ),
        "cache_salt": (
            2,
            [
                (
                    "stored",
                    hashes["salted"],
                    None,
                    [block(1000), block(1016)],
                    "DEVICE",
                    None,
                    "tenant-a",
                    None,
                )
            ],
        ),
        "lora_and_session": (
            3,
            [
                (
                    "stored",
                    hashes["lora"],
                    None,
                    [block(1000), block(1016)],
                    "DEVICE",
                    "sql-adapter",
                    None,
                    None,
                )
            ],
        ),
        "eviction": (
            4,
            [
                ("removed", hashes["decoded"], "DEVICE"),
                ("removed", [prompt[3]], "DEVICE"),
                ("removed", [prompt[2]], "DEVICE"),
            ],
        ),
        "multimodal_two_images": (
            5,
            [
                (
                    "stored",
                    images,
                    None,
                    IMAGE_BLOCKS,
                    "DEVICE",
                    None,
                    None,
                    ((ITEM_A,), (ITEM_A, ITEM_B), (ITEM_B,)),
                )
            ],
        ),
        "cache_hit_report_full_mode": (
            6,
            [
                (
                    "stored",
                    images[:2],
                    None,
                    IMAGE_BLOCKS[:2],
                    "DEVICE",
                    None,
                    None,
                    ((ITEM_A,), (ITEM_A, ITEM_B)),
                )
            ],
        ),
        "all_blocks_cleared": (7, [CLEARED]),
        "hybrid_group1_null_blocks": (8, [("unindexable", "other_group", 2)]),
        "group_block_size_32_hash_block_size_16": (9, [("unindexable", "wrong_block_size", 2)]),
        "partial_block_mamba_align": (10, [("unindexable", "other_group", 1)]),
        "prompt_embeds": (11, [("unindexable", "embeds", 2)]),
        "lookahead_1": (
            12,
            [
                (
                    "stored",
                    hashes["lookahead"],
                    None,
                    [block(6000), block(6016)],
                    "DEVICE",
                    None,
                    None,
                    None,
                )
            ],
        ),
        "offload_cpu_placeholder": (13, [("stored_by_hash", prompt[:1], "HOST")]),
        "offload_storage_self_describing": (
            14,
            [("stored", prompt[:1], None, [block(1000)], "REMOTE", None, None, None)],
        ),
        "offload_cpu_removed": (15, [("removed", prompt[:1], "HOST")]),
        "mooncake_store_lowercase_cpu": (
            16,
            [("stored", prompt[:1], None, [block(1000)], "HOST", None, None, None)],
        ),
        "after_encode_failure": (18, [CLEARED]),
    }


@pytest.mark.parametrize(
    ("name", "hashes"),
    [
        ("vllm-0.33.0-sha256_cbor-int", INT_HASHES),
        ("vllm-0.33.0-sha256-bytes", BYTES_HASHES),
    ],
)
def test_every_message_reads_as_written_down(
    read_capture: Read, name: str, hashes: dict[str, list[int]]
) -> None:
    read = read_capture(name, 16)
    assert {key: (seq, events) for key, (seq, _, events) in read.items()} == expected(hashes)
    assert {dp_rank for _, dp_rank, _ in read.values()} == {0}


def test_a_group_of_the_configured_block_size_is_indexed(read_capture: Read) -> None:
    read = read_capture("vllm-0.33.0-sha256_cbor-int", 32)
    assert read["group_block_size_32_hash_block_size_16"][2] == [
        (
            "stored",
            [9762489054092563930, 14981239623708277836],
            None,
            [list(range(4000, 4032)), list(range(4032, 4064))],
            "DEVICE",
            None,
            None,
            None,
        )
    ]
    assert read["prefill_4_full_blocks"][2] == [("unindexable", "wrong_block_size", 4)]


def test_each_rank_says_which_one_it_is(read_capture: Read) -> None:
    assert read_capture("vllm-0.33.0-dp-ranks", 16) == {
        "dp_rank_0": (0, 0, [CLEARED]),
        "dp_rank_1": (0, 1, [CLEARED]),
        "dp_rank_3": (0, 3, [CLEARED]),
    }
