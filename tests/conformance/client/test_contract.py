"""One contract for the client, with threads or asyncio."""

import gc
import time
from collections.abc import Callable

import grpc
import numpy as np
import pytest

from kvatlas_client import CallFailed, CellMismatch, NoReplicaAnswered, QueryRejected, ReplicaStatus
from kvatlas_hashing import CONTRACT, chunk_hashes, item_hash, sequence_hashes
from kvatlas_wire.v1 import indexer_pb2
from tests.conformance.client.conftest import Client, MakeClient
from tests.conformance.client.scripted import (
    UNAVAILABLE,
    ScriptedReplica,
    answer,
    nobody,
    refuse,
)

# Long enough that a test which waits for it has failed.
PATIENCE_MS = 30_000
SHORT_MS = 200


def until(check: Callable[[], bool]) -> None:
    end_s = time.monotonic() + PATIENCE_MS / 1e3
    while not check():
        assert time.monotonic() < end_s, "it did not happen"


def answers(client: Client) -> bool:
    try:
        client.find_matches(chunk_hashes=[1], deadline_ms=PATIENCE_MS)
    except NoReplicaAnswered:
        return False
    return True


def test_an_answer_comes_as_columns(make_client: MakeClient, replica: ScriptedReplica) -> None:
    replica.find = answer((2**64 - 1, 3, 9), (0, 0, 1))
    client = make_client(replica, deadline_ms=PATIENCE_MS)
    matches = client.find_matches(chunk_hashes=[1, 2])
    assert len(matches) == 2
    assert matches.worker_ids.dtype == np.uint64
    assert matches.dp_ranks.dtype == np.uint32
    assert matches.depths.dtype == np.uint32
    assert matches.worker_ids.tolist() == [2**64 - 1, 0]
    assert matches.dp_ranks.tolist() == [3, 0]
    assert matches.depths.tolist() == [9, 1]
    assert matches.replica == replica.address


def test_no_match_is_an_answer(make_client: MakeClient, replica: ScriptedReplica) -> None:
    client = make_client(replica, deadline_ms=PATIENCE_MS)
    matches = client.find_matches(chunk_hashes=[])
    assert len(matches) == 0
    assert matches.depths.tolist() == []


@pytest.mark.parametrize("blocks", [0, 1, 300, 20_000])
def test_the_question_arrives_as_asked(
    make_client: MakeClient, replica: ScriptedReplica, blocks: int
) -> None:
    client = make_client(
        replica, model="org/model-ß", block_size=16, hash_contract="c", deadline_ms=PATIENCE_MS
    )
    hashes = np.arange(blocks, dtype=np.uint64) * np.uint64(2**63 + 12_345)
    client.find_matches(chunk_hashes=hashes)
    client.find_matches(sequence_hashes=hashes, limit=5, exact=True)
    assert replica.queries == [
        indexer_pb2.FindMatchesRequest(
            model="org/model-ß", block_size=16, hash_contract="c", chunk_hashes=hashes.tolist()
        ),
        indexer_pb2.FindMatchesRequest(
            model="org/model-ß",
            block_size=16,
            hash_contract="c",
            sequence_hashes=hashes.tolist(),
            limit=5,
            exact=True,
        ),
    ]


def test_tokens_are_hashed_as_the_contract_says(
    make_client: MakeClient, replica: ScriptedReplica
) -> None:
    client = make_client(replica, block_size=16, deadline_ms=PATIENCE_MS)
    tokens = np.arange(40, dtype=np.uint32)
    items = [None, [item_hash("image")]]
    client.find_matches(tokens=tokens, lora_name="a", cache_salt="s", item_hashes=items)
    client.find_matches(tokens=tokens.tolist())
    first, second = replica.queries
    expected = chunk_hashes(tokens, 16, lora_name="a", cache_salt="s", item_hashes=items)
    assert list(first.chunk_hashes) == expected.tolist()
    assert list(second.chunk_hashes) == chunk_hashes(tokens, 16).tolist()
    assert second.hash_contract == CONTRACT


def test_wrong_arguments_are_refused_before_anyone_is_asked(
    make_client: MakeClient, replica: ScriptedReplica
) -> None:
    client = make_client(replica)
    one = np.ones(1, np.uint64)
    for arguments, text in [
        ({}, "not none of them"),
        ({"chunk_hashes": one, "sequence_hashes": one}, "not 2 of them"),
        ({"tokens": [1]}, "must know the cell's block_size"),
        ({"chunk_hashes": one, "cache_salt": "s"}, "go with tokens"),
        ({"chunk_hashes": one, "item_hashes": [None]}, "go with tokens"),
        ({"chunk_hashes": one, "limit": -1}, "limit must be"),
        ({"chunk_hashes": one, "limit": 2**32}, "limit must be"),
        ({"chunk_hashes": one, "deadline_ms": 0}, "deadline_ms must be above 0"),
        ({"chunk_hashes": one, "deadline_ms": float("nan")}, "deadline_ms must be above 0"),
        ({"chunk_hashes": [-1]}, "-1 is outside"),
    ]:
        with pytest.raises(ValueError, match=text):
            client.find_matches(**arguments)
    with pytest.raises(TypeError, match="integers"):
        client.find_matches(sequence_hashes=sequence_hashes(one).astype(float))
    assert replica.queries == []


@pytest.mark.parametrize(
    ("replicas", "arguments", "text"),
    [
        ([], {}, "one or more addresses"),
        (["host"], {}, "host:port, not 'host'"),
        ([":80"], {}, "host:port"),
        (["http://host"], {}, "host:port"),
        (["h:1", "h:1"], {}, "named twice"),
        (["h:1"], {"block_size": -1}, "block_size"),
        (["h:1"], {"deadline_ms": -1}, "deadline_ms"),
    ],
)
def test_wrong_settings_are_refused(
    make_client: MakeClient, replicas: list[str], arguments: dict[str, float], text: str
) -> None:
    with pytest.raises(ValueError, match=text):
        make_client(*replicas, **arguments)


def test_another_replica_answers_for_one_that_is_not_ready(
    make_client: MakeClient, replica: ScriptedReplica, other: ScriptedReplica
) -> None:
    replica.find = UNAVAILABLE
    other.find = answer((1, 0, 1))
    client = make_client(replica, other, deadline_ms=PATIENCE_MS)
    for _ in range(4):
        assert client.find_matches(chunk_hashes=[1]).replica == other.address
    health = {state.address: state for state in client.replicas()}
    assert health[replica.address].failures >= 1
    assert "not ready" in (health[replica.address].last_error or "")
    assert health[other.address].failures == 0


def test_another_replica_answers_for_one_that_is_gone(
    make_client: MakeClient, replica: ScriptedReplica
) -> None:
    client = make_client(nobody(), replica, deadline_ms=PATIENCE_MS)
    for _ in range(4):
        assert client.find_matches(chunk_hashes=[1]).replica == replica.address


def test_a_replica_that_hangs_costs_a_share_of_the_deadline(
    make_client: MakeClient, replica: ScriptedReplica, other: ScriptedReplica
) -> None:
    replica.find = replica.hang
    client = make_client(replica, other, deadline_ms=1_000)
    for _ in range(6):
        assert client.find_matches(chunk_hashes=[1]).replica == other.address
    # It was tried when its turn came, and then left alone for its backoff.
    assert 1 <= len(replica.queries) <= 4


def test_a_replica_that_dies_is_replaced_and_used_again_when_it_is_back(
    make_client: MakeClient, replica: ScriptedReplica, other: ScriptedReplica
) -> None:
    client = make_client(replica, other, deadline_ms=PATIENCE_MS)
    answered = {client.find_matches(chunk_hashes=[1]).replica for _ in range(4)}
    assert answered == {replica.address, other.address}
    replica.die()
    answered = {client.find_matches(chunk_hashes=[1]).replica for _ in range(4)}
    assert answered == {other.address}
    replica.start()
    until(lambda: client.find_matches(chunk_hashes=[1]).replica == replica.address)


def test_the_only_replica_is_found_again(make_client: MakeClient, replica: ScriptedReplica) -> None:
    client = make_client(replica)
    assert answers(client)
    replica.die()
    until(lambda: not answers(client))
    replica.start()
    until(lambda: answers(client))


def test_nobody_answers_in_time(make_client: MakeClient, replica: ScriptedReplica) -> None:
    replica.find = replica.hang
    client = make_client(replica, deadline_ms=SHORT_MS)
    begin_s = time.monotonic()
    with pytest.raises(NoReplicaAnswered, match="within 200 ms") as caught:
        client.find_matches(chunk_hashes=[1])
    assert time.monotonic() - begin_s >= SHORT_MS / 1e3 * 0.9
    assert [failure.code for failure in caught.value.failures] == [4]
    assert client.replicas()[0].failures == 1


def test_all_replicas_failing_is_told_without_waiting_for_the_deadline(
    make_client: MakeClient, replica: ScriptedReplica
) -> None:
    replica.find = UNAVAILABLE
    gone = nobody()
    client = make_client(replica, gone, deadline_ms=PATIENCE_MS)
    with pytest.raises(NoReplicaAnswered, match="not ready") as caught:
        client.find_matches(chunk_hashes=[1])
    assert {f.replica for f in caught.value.failures} == {replica.address, gone}
    assert {f.code for f in caught.value.failures} == {14}


def test_another_cell_is_an_error_of_its_own_and_not_tried_elsewhere(
    make_client: MakeClient, replica: ScriptedReplica, other: ScriptedReplica
) -> None:
    text = "this cell's block size is 32, not 16"
    for each in (replica, other):
        each.find = refuse(grpc.StatusCode.FAILED_PRECONDITION, text)
    client = make_client(replica, other, model="m", block_size=16, deadline_ms=PATIENCE_MS)
    with pytest.raises(CellMismatch, match=r"32, not 16.*asked for model 'm', block size 16"):
        client.find_matches(chunk_hashes=[1])
    assert len(replica.queries) + len(other.queries) == 1
    assert [state.failures for state in client.replicas()] == [0, 0]


def test_a_question_that_is_called_malformed_is_not_tried_elsewhere(
    make_client: MakeClient, replica: ScriptedReplica, other: ScriptedReplica
) -> None:
    for each in (replica, other):
        each.find = refuse(grpc.StatusCode.INVALID_ARGUMENT, "too long")
    client = make_client(replica, other, deadline_ms=PATIENCE_MS)
    with pytest.raises(QueryRejected, match="too long"):
        client.find_matches(chunk_hashes=[1])
    assert len(replica.queries) + len(other.queries) == 1


def test_an_answer_whose_columns_differ_is_a_failure(
    make_client: MakeClient, replica: ScriptedReplica
) -> None:
    replica.find = lambda _, __: indexer_pb2.FindMatchesResponse(worker_ids=[1])
    client = make_client(replica, deadline_ms=PATIENCE_MS)
    with pytest.raises(NoReplicaAnswered, match="columns differ"):
        client.find_matches(chunk_hashes=[1])


def test_replicas_take_turns(
    make_client: MakeClient, replica: ScriptedReplica, other: ScriptedReplica
) -> None:
    client = make_client(replica, other, deadline_ms=PATIENCE_MS)
    for _ in range(10):
        client.find_matches(chunk_hashes=[1])
    assert (len(replica.queries), len(other.queries)) == (5, 5)


def test_every_replicas_status_is_told(make_client: MakeClient, replica: ScriptedReplica) -> None:
    replica.status = indexer_pb2.GetStatusResponse(replica_id="one", memberships=7, ready=True)
    gone = nobody()
    client = make_client(replica, gone)
    status = client.status(replica.address)
    assert (status.replica_id, status.memberships, status.ready) == ("one", 7, True)
    with pytest.raises(CallFailed):
        client.status(gone)
    everyone = client.get_status()
    assert list(everyone) == [replica.address, gone]
    assert isinstance(everyone[replica.address], ReplicaStatus)
    assert isinstance(everyone[gone], CallFailed)
    with pytest.raises(ValueError, match="none of this client's"):
        client.status("elsewhere:1")


def test_a_closed_client_refuses(make_client: MakeClient, replica: ScriptedReplica) -> None:
    client = make_client(replica, deadline_ms=PATIENCE_MS)
    client.find_matches(chunk_hashes=[1])
    client.close()
    client.close()
    with pytest.raises(RuntimeError, match="closed"):
        client.find_matches(chunk_hashes=[1])
    with pytest.raises(RuntimeError, match="closed"):
        client.status(replica.address)
    # Whatever was not given up would warn now, and warnings are errors.
    del client
    gc.collect()
