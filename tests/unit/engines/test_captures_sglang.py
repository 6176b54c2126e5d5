"""SGLang's events: every message of the captures, against literals. Signed hashes modulo 2^64."""

from collections.abc import Callable
from typing import Any

import pytest

Read = Callable[[str, int], dict[str, Any]]

CLEARED = ("cleared", None)
PAGES = [2113097436205950712, 3163135733697444377, 10421407090631150414]
PAGE_TOKENS = [[1000, 1001, 1002, 1003], [1004, 1005, 1006, 1007], [1008, 1009, 1010, 1011]]
CHILD = [5924686180934636990, 17348661357891768772]
CHILD_TOKENS = [[1012, 1013, 1014, 1015], [1016, 1017, 1018, 1019]]
LORA = [7923633928539000111, 16162109290423013434]


def stored(
    hashes: list[int],
    parent: int | None,
    tokens: list[list[int]],
    *,
    tier: str = "DEVICE",
    lora: str | None = None,
    salt: str | None = None,
) -> tuple[Any, ...]:
    return ("stored", hashes, parent, tokens, tier, lora, salt, None)


def of_run(run: str, first_seq: int, salted: list[int]) -> dict[str, Any]:
    messages = {
        "store_3_pages": [stored(PAGES, None, PAGE_TOKENS)],
        "child_node_session": [stored(CHILD, PAGES[2], CHILD_TOKENS)],
        "cache_salt": [stored(salted, None, PAGE_TOKENS[:2], salt="tenant-a")],
        "lora_extra_key": [stored(LORA, None, PAGE_TOKENS[:2], lora="sql-adapter")],
        "eagle_bigram": [stored([9198482225452606037, 5849813026473158476], None, PAGE_TOKENS[:2])],
        "offload_to_host": [
            stored(PAGES, None, PAGE_TOKENS, tier="HOST"),
            ("removed", PAGES, "DEVICE"),
        ],
        "disk_external": [
            stored(CHILD, PAGES[2], CHILD_TOKENS, tier="DISK"),
            stored(CHILD, PAGES[2], CHILD_TOKENS, tier="REMOTE"),
        ],
        "removes": [("removed", LORA, "DEVICE"), ("removed", salted, "HOST")],
        "flush_cache": [CLEARED],
    }
    return {
        f"{run}/{name}": (first_seq + index, 0, events)
        for index, (name, events) in enumerate(messages.items())
    }


def test_0_5_23_says_everything_in_maps(read_capture: Read) -> None:
    assert read_capture("sglang-0.5.23", 4) == of_run(
        "default", 0, [10388901235373101635, 17103106354937333195]
    ) | of_run("dynamo", 9, [2101544889655029958, 16452255231795955032])


def test_0_5_17_says_less_in_arrays(read_capture: Read) -> None:
    assert read_capture("sglang-0.5.17", 4) == {
        "stored": (0, 0, [stored([18446744073709551611], None, [[1, 2, 3, 4]])]),
        "stored_gpu_child": (
            1,
            0,
            [stored([4611686018427387904], 18446744073709551611, [[5, 6, 7, 8]])],
        ),
        "removed": (2, 0, [("removed", [18446744073709551611], "HOST")]),
        "cleared": (3, 0, [CLEARED]),
    }


@pytest.mark.parametrize("name", ["sglang-0.5.23", "sglang-0.5.17"])
def test_another_page_size_is_told(read_capture: Read, name: str) -> None:
    first = next(iter(read_capture(name, 16).values()))
    assert first[2][0][:2] == ("unindexable", "wrong_block_size")
