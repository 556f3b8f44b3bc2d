"""TensorBoard's own reader on the event files that the runner writes."""

import os
import pathlib
import struct
import subprocess

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator


@pytest.fixture
def write_events(tool, tmp_path):
    """Steps resume_step+1 … last_step with train/loss = offset + step/4; returns the file."""
    def write(resume_step, last_step, offset):
        command = [tool("write_events"), tmp_path, str(resume_step), str(last_step), str(offset)]
        return pathlib.Path(subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip())
    return write


def read(folder):
    accumulator = EventAccumulator(str(folder))
    accumulator.Reload()
    return accumulator


def steps_and_values(accumulator, tag):
    return [(event.step, event.value) for event in accumulator.Scalars(tag)]


def test_values_steps_and_times_are_read_back(tmp_path, write_events):
    write_events(0, 3, 1.0)
    events = read(tmp_path)
    assert sorted(events.Tags()["scalars"]) == ["eval/ndcg@10", "train/loss", "train/lr"]
    assert steps_and_values(events, "train/loss") == [(1, 1.25), (2, 1.5), (3, 1.75)]
    assert steps_and_values(events, "eval/ndcg@10") == [(3, 1.0)]
    assert [event.wall_time for event in events.Scalars("train/lr")] == [1700000001.0, 1700000002.0, 1700000003.0]


def test_steps_that_are_redone_after_a_resume_are_hidden(tmp_path, write_events):
    write_events(0, 6, 0.0)
    write_events(3, 5, 100.0)
    events = read(tmp_path)
    assert steps_and_values(events, "train/loss") == [(1, 0.25), (2, 0.5), (3, 0.75), (4, 101.0), (5, 101.25)]
    assert steps_and_values(events, "eval/ndcg@10") == [(5, 100.0)]


def test_a_new_start_without_a_checkpoint_hides_everything_before(tmp_path, write_events):
    write_events(0, 4, 0.0)
    write_events(0, 2, 10.0)
    assert steps_and_values(read(tmp_path), "train/loss") == [(1, 10.25), (2, 10.5)]


def test_a_file_whose_last_record_is_torn_does_not_hide_the_next(tmp_path, write_events):
    first = write_events(0, 4, 0.0)
    os.truncate(first, first.stat().st_size - 5)
    write_events(4, 5, 0.0)
    steps = [step for step, _ in steps_and_values(read(tmp_path), "train/loss")]
    assert steps == [1, 2, 3, 4, 5]


def test_steps_beyond_one_byte_of_varint(tmp_path, write_events):
    write_events(299_999, 300_001, 0.0)
    assert steps_and_values(read(tmp_path), "train/loss") == [(300_000, 75_000.0), (300_001, 75_000.25)]


def test_a_flipped_bit_ends_the_file_where_it_stands(tmp_path, write_events):
    """The checksums are real: the reader refuses a record that was damaged."""
    path = write_events(0, 3, 3.0)
    data = bytearray(path.read_bytes())
    data[data.index(struct.pack("<f", 3.5))] ^= 1  # train/loss at step 2
    path.write_bytes(data)
    assert steps_and_values(read(tmp_path), "train/loss") == [(1, 3.25)]
