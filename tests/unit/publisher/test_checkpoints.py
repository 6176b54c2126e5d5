"""Checkpoints on disk: whole, damaged, of other settings, too large, or not written."""

import dataclasses
import json
import shutil
import struct
import zlib
from pathlib import Path
from typing import Any

import pytest

from kvatlas_engines.effects import Deliver, ResumePoint
from kvatlas_engines.sequencer import FollowerSettings, MessageSequencer
from kvatlas_events import SnapshotPart
from kvatlas_native import MirrorMemory
from kvatlas_publisher.epoch.epoch import Epoch
from kvatlas_publisher.epoch.worker_epochs import new_mirror
from kvatlas_publisher.state.checkpoint_file import (
    Checkpoint,
    CheckpointTerms,
    decode_checkpoint,
    encode_checkpoint,
)
from kvatlas_publisher.state.checkpoints import Checkpoints
from kvatlas_publisher.state.state_dir import StateCorrupt, StateDir
from tests.reference import wire_events as wire
from tests.reference.batch_decoder import decode_batch
from tests.unit.publisher.workers import header, worker_context

TERMS = CheckpointTerms("c", "7/1", "vllm", "m", 1)
FILE = "kvatlas-c-7-1.checkpoint"


class Bench:
    """An epoch of three blocks at message 1, and its checkpoints."""

    def __init__(self, path: Path, **changes: Any) -> None:  # noqa: ANN401 - passed on
        values: dict[str, Any] = {"mirror_blocks_max": 100, "memory": MirrorMemory()}
        self.context = worker_context(StateDir.open(path), **(values | changes))
        self.counters = self.context.counters
        self.checkpoints = Checkpoints(self.context)
        self.epoch = Epoch(header(self.context.worker, 5), new_mirror(self.context))
        self.epoch.apply_payloads([wire.payload(wire.stored([1, 2, 3], [1, 2, 3]))])
        self.sequencer = MessageSequencer(has_replay=False, settings=FollowerSettings())
        self.sequencer.on_live(0, b"p-0", 0.0)
        self.sequencer.on_live(1, b"p-1", 0.0)

    def save(self) -> None:
        self.checkpoints.save(self.epoch, self.sequencer)


def test_a_checkpoint_comes_back_as_it_was_written() -> None:
    checkpoint = Checkpoint(TERMS, ResumePoint.of(Deliver(2**64 - 1, b"x")), b"state")
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
    with pytest.raises(StateCorrupt, match="its header has other fields"):
        decode_checkpoint(b"".join((b"kvcheckp", length, header, checksum)))


def test_what_was_held_waits_for_the_engines_proof(tmp_path: Path) -> None:
    before = Bench(tmp_path)
    before.save()
    after = Bench(tmp_path).checkpoints
    assert after.resume_point == ResumePoint.of(Deliver(1, b"p-1"))
    mirror = after.resume()
    assert after.resume_point is None
    assert mirror.digests() == before.epoch.mirror.digests()
    assert mirror.pending_events == 0


def test_a_resumed_epoch_opens_with_a_snapshot_as_of_event_1_even_if_empty(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    epoch = Epoch(bench.epoch.header, new_mirror(bench.context), 1_000, resumed=True)
    (record,) = epoch.snapshot()
    part = decode_batch(record).snapshot
    assert isinstance(part, SnapshotPart)
    assert part.as_of_event_id == 1
    assert epoch.replay_ring.since(2) == []
    epoch.apply_payloads([wire.payload(wire.stored([9], [9]))])
    (record,) = epoch.seal()
    assert decode_batch(record).first_event_id == 2
    assert epoch.replay_ring.since(2) == [record]


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
    assert after.checkpoints.resume_point is None
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
    assert after.checkpoints.resume_point is None
    assert after.counters.state_corrupt == 1
    assert len(caplog.messages) == 1
    assert [file.name for file in tmp_path.iterdir()] == [f"{FILE}.corrupt"]


def test_a_mirror_larger_than_allowed_is_not_loaded(tmp_path: Path) -> None:
    Bench(tmp_path).save()
    assert Bench(tmp_path, mirror_blocks_max=2).checkpoints.resume_point is None


def test_only_changes_are_written_and_nothing_before_the_first_message(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.checkpoints.save(None, bench.sequencer)
    bench.checkpoints.save(
        bench.epoch, MessageSequencer(has_replay=False, settings=FollowerSettings())
    )
    assert list(tmp_path.iterdir()) == []
    bench.save()
    bench.save()
    assert bench.counters.checkpoints == 1
    bench.sequencer.on_live(2, b"p-2", 0.0)
    bench.save()
    assert bench.counters.checkpoints == 2
    assert Bench(tmp_path).checkpoints.resume_point == ResumePoint.of(Deliver(2, b"p-2"))


def test_a_disk_that_fails_is_counted_and_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench(tmp_path / "state")
    shutil.rmtree(tmp_path / "state")
    for seq in (2, 3):
        bench.sequencer.on_live(seq, b"p", 0.0)
        bench.save()
    assert bench.counters.state_failures == 2
    assert bench.counters.checkpoints == 0
    assert len(caplog.messages) == 1


def test_a_checkpoint_that_waited_and_was_not_proven_stays_on_disk(tmp_path: Path) -> None:
    Bench(tmp_path).save()
    content = (tmp_path / FILE).read_bytes()
    after = Bench(tmp_path)
    after.checkpoints.save(
        None,
        MessageSequencer(
            has_replay=True,
            settings=FollowerSettings(),
            resume_point=after.checkpoints.resume_point,
        ),
    )
    assert (tmp_path / FILE).read_bytes() == content
    assert not after.checkpoints.is_overdue(5.0, 10.0)
    assert not after.checkpoints.is_overdue(14.9, 10.0)
    assert after.checkpoints.is_overdue(15.0, 10.0)
