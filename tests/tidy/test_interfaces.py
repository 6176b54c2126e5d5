"""The names that others call from outside: commands and flags, RPC, Python, the verbs of make.

Renaming one of these breaks somebody's deployment; the lists are literals for that reason.
"""

import inspect
import re
from pathlib import Path

import pytest
from google.protobuf.descriptor import FieldDescriptor

import kvatlas_client
import kvatlas_hashing
from kvatlas_cli import main
from kvatlas_wire.v1 import indexer_pb2, publisher_pb2

REPOSITORY = Path(__file__).parents[2]

FLAGS = {
    "indexer": "--config --listen --admin --log --model --block-size --cell --snapshot-dir",
    "publisher": (
        "--config --engine --events --replay --engine-url --worker-id --model --block-size --log "
        "--cell --state-dir --listen --admin --advertise --advertise-engine-url"
    ),
    "frontend": "--config --listen --admin --indexer --model --block-size --tokenizer --policy --check --json",
    "mock-engine": "--listen --events --replay --model --block-size --blocks --speedup",
    "demo": "--trace --requests --engines --policy --seed --json --keep",
    "verify": "--indexer --publisher",
    "bench": "--list --json",
}


@pytest.mark.parametrize("verb", ["demo", "test", "bench", "lint", "protos"])
def test_make_has_the_verb(verb: str) -> None:
    makefile = (REPOSITORY / "Makefile").read_text()
    assert re.search(rf"^{verb}:", makefile, re.MULTILINE)


@pytest.mark.parametrize("command", sorted(FLAGS))
def test_a_command_has_its_flags(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([command, "--help"])
    text = capsys.readouterr().out
    assert [flag for flag in FLAGS[command].split() if flag not in text] == []


def test_the_indexer_has_its_methods() -> None:
    service = indexer_pb2.DESCRIPTOR.services_by_name["Indexer"]
    assert service.full_name == "kvatlas.v1.Indexer"
    assert {m.name for m in service.methods} >= {
        "FindMatches",
        "WatchWorkers",
        "Ingest",
        "Dump",
        "GetStatus",
    }


def test_the_publisher_has_its_methods() -> None:
    service = publisher_pb2.DESCRIPTOR.services_by_name["Publisher"]
    assert service.full_name == "kvatlas.v1.Publisher"
    assert {m.name for m in service.methods} >= {"Replay", "Snapshot"}


F = FieldDescriptor


@pytest.mark.parametrize(
    ("message", "field", "kind", "repeated"),
    [
        ("FindMatchesRequest", "model", F.TYPE_STRING, False),
        ("FindMatchesRequest", "block_size", F.TYPE_UINT32, False),
        ("FindMatchesRequest", "hash_contract", F.TYPE_STRING, False),
        ("FindMatchesRequest", "chunk_hashes", F.TYPE_FIXED64, True),
        ("FindMatchesRequest", "sequence_hashes", F.TYPE_FIXED64, True),
        ("FindMatchesRequest", "limit", F.TYPE_UINT32, False),
        ("FindMatchesRequest", "exact", F.TYPE_BOOL, False),
        ("FindMatchesResponse", "worker_ids", F.TYPE_FIXED64, True),
        ("FindMatchesResponse", "dp_ranks", F.TYPE_UINT32, True),
        ("FindMatchesResponse", "depths", F.TYPE_UINT32, True),
    ],
)
def test_a_message_has_its_field(message: str, field: str, kind: int, repeated: bool) -> None:
    descriptor = indexer_pb2.DESCRIPTOR.message_types_by_name[message].fields_by_name[field]
    assert descriptor.type == kind
    assert descriptor.is_repeated == repeated


def test_hashing_has_its_signatures() -> None:
    signature = inspect.signature(kvatlas_hashing.chunk_hashes)
    assert list(signature.parameters) == [
        "tokens",
        "block_size",
        "lora_name",
        "cache_salt",
        "item_hashes",
    ]
    keyword_only = [
        name for name, p in signature.parameters.items() if p.kind is inspect.Parameter.KEYWORD_ONLY
    ]
    assert keyword_only == ["lora_name", "cache_salt", "item_hashes"]
    assert list(inspect.signature(kvatlas_hashing.sequence_hashes).parameters) == ["chunks"]


def test_the_client_has_its_classes() -> None:
    assert inspect.isclass(kvatlas_client.Indexer)
    assert inspect.isclass(kvatlas_client.AsyncIndexer)
