"""The golden vectors hold: the reference makes them, the native code reproduces them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvatlas_hashing import CONTRACT, chunk_hashes, item_hash, reference, seed, sequence_hashes
from tests.reference.hashing_golden import FILE, main

Case = dict[str, Any]
GOLDEN: Case = json.loads(FILE.read_text())
CASES: list[Case] = GOLDEN["cases"]


def test_the_file_holds_what_the_reference_says() -> None:
    assert main(["--check"]) == 0


def test_a_changed_vector_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    changed = tmp_path / "golden.json"
    text = FILE.read_text()
    first = str(CASES[0]["chunk_hashes"][0])
    changed.write_text(text.replace(first, str(int(first) ^ 1), 1))
    monkeypatch.setattr("tests.reference.hashing_golden.FILE", changed)
    assert main(["--check"]) == 1
    assert "differs from" in capsys.readouterr().err


def test_the_contract_has_its_name() -> None:
    assert CONTRACT == "xxh3-1337-v1" == GOLDEN["contract"]


@pytest.mark.parametrize(
    "case", CASES, ids=lambda case: f"{case['token_count']}-by-{case['block_size']}"
)
def test_the_native_hashes_are_the_golden_ones(case: Case) -> None:
    tokens = np.array(GOLDEN["tokens"][: case["token_count"]], np.uint32)
    chunks = chunk_hashes(
        tokens,
        case["block_size"],
        lora_name=case["lora_name"],
        cache_salt=case["cache_salt"],
        item_hashes=case["item_hashes"],
    )
    assert chunks.tolist() == case["chunk_hashes"]
    assert sequence_hashes(chunks).tolist() == case["sequence_hashes"]


def test_seeds_and_item_hashes_are_the_golden_ones() -> None:
    for case in GOLDEN["seeds"]:
        assert seed(case["lora_name"], case["cache_salt"]) == case["seed"]
    for case in GOLDEN["items"]:
        assert item_hash(case["identifier"]) == case["hash"]
    for case in GOLDEN["steps"]:
        assert sequence_hashes([case["parent"], case["chunk"]])[1] == case["hash"]
        assert reference.sequence_step(case["parent"], case["chunk"]) == case["hash"]
