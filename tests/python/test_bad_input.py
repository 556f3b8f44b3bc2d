"""Bad input: the exit code of the table, and an error that names the thing, what was found and what to do."""
import os
import socket
import subprocess

import pytest

from programs import clean_environment, text
from runs import SMALL_MODEL, checkpoints


def base(dataset, folder):
    return ["sasrec", "--dataset", str(dataset), "--train_dir", str(folder), "--max_steps", "3", *SMALL_MODEL]


@pytest.mark.parametrize("flags, words", [
    (["--batch_sise", "4"], ["--batch_sise", "--batch_size"]),
    (["--maxlen", "many"], ["--maxlen", "many"]),
    (["--dropout_rate", "1.5"], ["--dropout_rate", "1.5"]),
    (["--variant", "bert4rec"], ["bert4rec", "sasrec or tisasrec"]),
    (["--num_heads", "3"], ["--num_heads", "3", "16"]),
    (["--precision", "fp16"], ["fp16", "GPU"]),
    (["--device", "cuda"], ["--device cuda", "cpu"]),
    (["--backend", "nccl"], ["nccl", "gloo"]),
])
def test_a_bad_flag_is_refused_by_name(run, lockstep, small_dataset, tmp_path, flags, words):
    done = run([lockstep, "run", *base(small_dataset, tmp_path / "run"), "--nproc", "2", *flags])
    assert done.returncode == 2, text(done)
    for word in words:
        assert word in text(done), f"{word!r} is not in: {text(done)}"


@pytest.mark.parametrize("nodes", [1, 2])
def test_an_interface_that_is_not_there_is_named_and_tried_once(run, lockstep, small_dataset, tmp_path, nodes):
    done = run([lockstep, "run", *base(small_dataset, tmp_path / "run"), "--local_nodes", nodes, "--nproc", "2"],
               GLOO_SOCKET_IFNAME="nosuch0")
    assert done.returncode == 2, text(done)
    assert "nosuch0 (GLOO_SOCKET_IFNAME)" in text(done) and "lockstep doctor" in text(done)
    assert "generation 2" not in text(done)


def test_the_first_interface_of_a_list_that_is_there_is_used(run, lockstep, small_dataset, tmp_path):
    done = run([lockstep, "run", *base(small_dataset, tmp_path / "run"), "--nproc", "2"], GLOO_SOCKET_IFNAME="nosuch0,lo")
    assert done.returncode == 0, text(done)


def test_a_batch_smaller_than_the_world_names_both(run, lockstep, worker, small_dataset, tmp_path):
    done = run([lockstep, "run", *base(small_dataset, tmp_path / "run"), "--nproc", "4", "--batch_size", "3"])
    assert done.returncode == 2
    assert "3" in text(done) and "4" in text(done) and "--batch_size" in text(done)


@pytest.mark.parametrize("content, word", [
    ("", "empty"),
    ("1 2\n1 3\n1 4\n1 5\n1 6\n1 7\n", "user"),
    ("-1 2\n-1 3\n2 3\n", "-1"),
    ("hello world\nthis is\nnot data\n", "hello world"),
])
def test_a_data_set_that_cannot_be_used_ends_with_three(run, lockstep, tmp_path, content, word):
    path = tmp_path / "bad.txt"
    path.write_text(content)
    done = run([lockstep, "run", *base(path, tmp_path / "run"), "--nproc", "2"])
    assert done.returncode == 3, text(done)
    assert word in text(done) and "bad.txt" in text(done), text(done)


def test_a_missing_data_set_names_the_places_tried(run, lockstep, tmp_path):
    done = run([lockstep, "run", *base("nowhere", tmp_path / "run"), "--nproc", "2"])
    assert done.returncode == 3, text(done)
    for place in ("nowhere.txt", "nowhere.inter", "ratings.dat"):
        assert place in text(done)


def test_rank_without_world_size(run, worker, small_dataset, tmp_path):
    done = run([worker, *base(small_dataset, tmp_path / "run")], RANK="0")
    assert done.returncode == 2
    assert "RANK" in text(done) and "WORLD_SIZE" in text(done)


def test_rank_outside_the_world(run, worker, small_dataset, tmp_path):
    done = run([worker, *base(small_dataset, tmp_path / "run")], RANK="2", WORLD_SIZE="2", MASTER_ADDR="127.0.0.1",
               MASTER_PORT="29999")
    assert done.returncode == 2
    assert "RANK" in text(done) and "2" in text(done)


def test_a_torchrun_environment_around_the_agent_names_the_worker(run, lockstep, small_dataset, tmp_path):
    done = run([lockstep, "run", *base(small_dataset, tmp_path / "run")], RANK="0", WORLD_SIZE="2", LOCAL_RANK="0",
               MASTER_ADDR="127.0.0.1", MASTER_PORT="29999")
    assert done.returncode == 2
    assert "lockstep-worker" in text(done)


@pytest.mark.parametrize("name", ["LOCKSTEP_STALL_TIMEOUT_SECONDS", "LOCKSTEP_REJOIN_TIMEOUT_SECONDS",
                                  "LOCKSTEP_STOP_TIMEOUT_SECONDS"])
@pytest.mark.parametrize("value", ["soon", "0", "1.5"])
def test_a_timeout_of_the_pod_that_is_no_number_is_named(run, lockstep, small_dataset, tmp_path, name, value):
    done = run([lockstep, "run", *base(small_dataset, tmp_path / "run")], **{name: value})
    assert done.returncode == 2
    assert name in text(done) and f'"{value}"' in text(done)


def test_peers_that_never_come_are_named(run, worker, small_dataset, tmp_path, free_port):
    done = run([worker, *base(small_dataset, tmp_path / "run"), "--rendezvous_timeout_seconds", "2"], RANK="0", WORLD_SIZE="3",
               MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()))
    assert done.returncode == 10, text(done)
    assert "1, 2" in text(done)


def test_rank_zero_that_never_comes_is_named(run, worker, small_dataset, tmp_path, free_port):
    port = str(free_port())
    done = run([worker, *base(small_dataset, tmp_path / "run"), "--rendezvous_timeout_seconds", "2"], RANK="1", WORLD_SIZE="2",
               MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    assert done.returncode == 10, text(done)
    assert "rank 0" in text(done) and port in text(done)


def test_a_port_that_is_taken_is_named_with_both_ways_out(run, worker, small_dataset, tmp_path):
    with socket.socket(socket.AF_INET6) as taken:
        taken.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        taken.bind(("::", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        done = run([worker, *base(small_dataset, tmp_path / "run"), "--rendezvous_timeout_seconds", "5"], RANK="0",
                   WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    assert done.returncode == 2, text(done)
    for word in (port, "--master_port", "MASTER_PORT"):
        assert word in text(done)


def test_different_flags_on_different_ranks_are_refused_on_both(worker, small_dataset, tmp_path, free_port):
    port = str(free_port())
    processes = [subprocess.Popen([worker, *base(small_dataset, tmp_path / "run"), "--lr", lr], stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT, text=True,
                                  env=clean_environment(RANK=str(r), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1",
                                                        LOCAL_RANK=str(r), MASTER_PORT=port))
                 for r, lr in enumerate(("0.001", "0.002"))]
    for process in processes:
        output = process.communicate(timeout=60)[0]
        assert process.returncode == 2, output
        assert "--lr" in output and "0.001" in output and "0.002" in output


def test_a_read_only_volume_ends_with_four(run, lockstep, small_dataset, tmp_path):
    # A file where the folder should be: what even root cannot write to.
    (tmp_path / "run").write_text("in the way")
    done = run([lockstep, "run", *base(small_dataset, tmp_path / "run" / "deeper"), "--nproc", "2"])
    assert done.returncode == 4, text(done)
    assert f"the checkpoint folder {tmp_path / 'run' / 'deeper'} is not writable" in text(done)
    assert "chown" in text(done)


@pytest.mark.parametrize("often", [[], ["--checkpoint_every", "1"]], ids=["", "a checkpoint every step"])
def test_a_gradient_that_is_not_finite_stops_all_ranks_together(run, often, lockstep, small_dataset, tmp_path):
    from safetensors.torch import load_file, save_file
    first = run([lockstep, "run", *base(small_dataset, tmp_path / "run"), "--nproc", "2"])
    assert first.returncode == 0, text(first)
    weights = load_file(tmp_path / "run" / checkpoints(tmp_path / "run")[-1] / "model.safetensors")
    weights["last_layernorm.weight"][0] = float("nan")
    save_file(weights, tmp_path / "broken.safetensors")
    done = run([lockstep, "run", *base(small_dataset, tmp_path / "other"), "--nproc", "2", "--max_steps", "200",
                "--state_dict_path", tmp_path / "broken.safetensors", "--max_skipped_steps", "3", *often])
    assert done.returncode == 5, text(done)
    assert "--max_skipped_steps" in text(done) and "--lr" in text(done)
    assert "step 1 skipped on all ranks" in text(done)
