"""Checkpoints on disk: whole, damaged, of other settings, too late, or not to be written."""

import dataclasses
import json
import shutil
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvatlas_engines import Stored, Tier
from kvatlas_engines.anchor import Anchor, digest_of
from kvatlas_engines.endpoint import Endpoint
from kvatlas_engines.stream import Stream, StreamTiming
from kvatlas_events import SnapshotPart, Worker, decode_batch
from kvatlas_native import Memory
from kvatlas_publisher.checkpoint import (
    Checkpoint,
    Checkpoints,
    Terms,
    decode_checkpoint,
    encode_checkpoint,
)
from kvatlas_publisher.life import Life
from kvatlas_publisher.session_terms import SessionCounters, SessionSettings, header_of
from kvatlas_publisher.settings import EngineSpec
from kvatlas_publisher.state_dir import StateCorrupt, StateDir

WORKER = Worker(7, 1)
TERMS = Terms("c", "7/1", "vllm", "m", 1)
SPEC = EngineSpec(
    engine="vllm",
    events=Endpoint.parse("tcp://127.0.0.1:1"),
    replay=Endpoint.parse("tcp://127.0.0.1:2"),
    engine_url=None,
    advertised_url="",
    worker_id=7,
    dp_rank=1,
    model="m",
    block_size=1,
    cell="c",
    logs=(),
    role="",
    labels={},
)
FILE = "kvatlas-c-7-1.checkpoint"


class Bench:
    """A life of three blocks at message 1, and who keeps it."""

    def __init__(self, path: Path, **changes: Any) -> None:  # noqa: ANN401 - passed on
        self.counters = SessionCounters()
        blocks_max = changes.pop("blocks_max", 100)
        self.spec = dataclasses.replace(SPEC, **changes)
        state = StateDir.open(path)
        settings = SessionSettings(
            instance_id=1, advertised_rpc="", mirror_blocks_max=blocks_max, memory=Memory()
        )
        self.kept = Checkpoints(self.spec, WORKER, state, settings, self.counters)
        self.life = Life(header_of(self.spec, WORKER, 5, 6), self.kept.new_mirror())
        hashes = (1, 2, 3)
        tokens = np.array(hashes, dtype=np.uint32).reshape(-1, 1)
        self.life.apply([Stored(hashes, None, tokens, Tier.DEVICE)])
        self.stream = Stream(has_replay=False, timing=StreamTiming())
        self.stream.live(0, b"p-0", 0.0)
        self.stream.live(1, b"p-1", 0.0)

    def save(self) -> None:
        self.kept.save(self.life, self.stream)


def test_a_checkpoint_comes_back_as_it_was_written() -> None:
    checkpoint = Checkpoint(TERMS, Anchor(2**64 - 1, digest_of(b"x")), b"state")
    content = b"".join(encode_checkpoint(checkpoint))
    assert decode_checkpoint(content) == checkpoint
    for at in range(len(content) - len(b"state")):
        with pytest.raises(StateCorrupt):
            decode_checkpoint(content[:at])
        for bit in range(8):
            damaged = bytearray(content)
            damaged[at] ^= 1 << bit
            with pytest.raises(StateCorrupt):
                decode_checkpoint(bytes(damaged))


def test_a_header_with_a_whole_checksum_and_no_whole_number_is_corrupt() -> None:
    header = b'{"version": 1, "terms": {}, "seq": Infinity, "digest": "", "state_bytes": 0}'
    terms = json.dumps(dataclasses.asdict(TERMS)).encode()
    header = header.replace(b"{}", terms)
    length, checksum = struct.pack("<I", len(header)), struct.pack("<I", zlib.crc32(header))
    with pytest.raises(StateCorrupt, match="its header is another one"):
        decode_checkpoint(b"".join((b"kvcheckp", length, header, checksum)))


def test_what_was_held_waits_for_the_engines_proof(tmp_path: Path) -> None:
    before = Bench(tmp_path)
    before.save()
    after = Bench(tmp_path).kept
    assert after.anchor == Anchor(1, digest_of(b"p-1"))
    mirror = after.resume()
    assert after.anchor is None
    assert mirror.digests() == before.life.mirror.digests()
    assert mirror.pending_events == 0


def test_a_resumed_life_opens_with_a_snapshot_as_of_event_1_even_if_empty(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    life = Life(bench.life.header, bench.kept.new_mirror(), 1_000, resumed=True)
    (record,) = life.snapshot()
    part = decode_batch(record).snapshot
    assert isinstance(part, SnapshotPart)
    assert part.as_of_event_id == 1
    assert life.recent.since(2) == []
    tokens = np.array([[9]], dtype=np.uint32)
    life.apply([Stored((9,), None, tokens, Tier.DEVICE)])
    (record,) = life.seal()
    assert decode_batch(record).first_event_id == 2
    assert life.recent.since(2) == [record]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"model": "other"}, "its model differs"),
        ({"block_size": 2}, "its block_size differs"),
        ({"engine": "sglang"}, "its engine differs"),
        ({"replay": None}, "without --replay"),
    ],
)
def test_a_checkpoint_of_other_settings_is_dropped_with_one_line(
    tmp_path: Path, changes: dict[str, Any], why: str, caplog: pytest.LogCaptureFixture
) -> None:
    Bench(tmp_path).save()
    caplog.clear()
    after = Bench(tmp_path, **changes)
    assert after.kept.anchor is None
    assert after.counters.checkpoints_dropped == 1
    (line,) = caplog.messages
    assert why in line


@pytest.mark.parametrize("at", [3, 40, -3])
def test_a_damaged_checkpoint_is_moved_aside_and_counted(
    tmp_path: Path, at: int, caplog: pytest.LogCaptureFixture
) -> None:
    Bench(tmp_path).save()
    damaged = bytearray((tmp_path / FILE).read_bytes())
    damaged[at] ^= 1
    (tmp_path / FILE).write_bytes(damaged)
    caplog.clear()
    after = Bench(tmp_path)
    assert after.kept.anchor is None
    assert after.counters.state_corrupt == 1
    assert len(caplog.messages) == 1
    assert [file.name for file in tmp_path.iterdir()] == [f"{FILE}.corrupt"]


def test_a_mirror_larger_than_allowed_is_not_loaded(tmp_path: Path) -> None:
    Bench(tmp_path).save()
    assert Bench(tmp_path, blocks_max=2).kept.anchor is None


def test_only_news_are_written_and_nothing_before_the_first_message(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.kept.save(None, bench.stream)
    bench.kept.save(bench.life, Stream(has_replay=False, timing=StreamTiming()))
    assert list(tmp_path.iterdir()) == []
    bench.save()
    bench.save()
    assert bench.counters.checkpoints == 1
    bench.stream.live(2, b"p-2", 0.0)
    bench.save()
    assert bench.counters.checkpoints == 2
    assert Bench(tmp_path).kept.anchor == Anchor(2, digest_of(b"p-2"))


def test_a_disk_that_fails_is_counted_and_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench(tmp_path / "state")
    shutil.rmtree(tmp_path / "state")
    for seq in (2, 3):
        bench.stream.live(seq, b"p", 0.0)
        bench.save()
    assert bench.counters.state_failures == 2
    assert bench.counters.checkpoints == 0
    assert len(caplog.messages) == 1


def test_a_checkpoint_that_waited_and_was_not_proven_stays_on_disk(tmp_path: Path) -> None:
    Bench(tmp_path).save()
    content = (tmp_path / FILE).read_bytes()
    after = Bench(tmp_path)
    after.kept.save(None, Stream(has_replay=True, timing=StreamTiming(), anchor=after.kept.anchor))
    assert (tmp_path / FILE).read_bytes() == content
    assert not after.kept.is_overdue(5.0, 10.0)
    assert not after.kept.is_overdue(14.9, 10.0)
    assert after.kept.is_overdue(15.0, 10.0)
