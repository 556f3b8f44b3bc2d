"""A batch that does not fit into memory: each workload says which one fits and by which flags, and a run with those ends well.
The memory is that of the address space (ulimit -v), where torch's own allocator says that there is none left."""
import re

import pytest

QUICK = ["--max_restarts", "0", "--max_steps", "1", "--eval_every", "0", "--checkpoint_every", "0", "--threads", "1", "--nproc", "1",
         "--status_port", "0"]
MIB = 2000

# The line, the flag that says how large a batch is, and what else takes less.
LINES = {
    # Its evaluation takes no more users at once than the advised batch has.
    "tisasrec": (["sasrec", "--variant", "tisasrec", "--dataset", "generated", "--time_dropout", "pairwise", "--maxlen", "200",
                  "--batch_size", "256", "--eval_users", "128"], "batch_size",
                 ["--maxlen (now 200) takes less", "--use_amp on a GPU", "more ranks for the same --batch_size"]),
    "jit": (["jit", "--data_path", "generated:400:2", "--model", "4x128/4", "--img_size", "64", "--valid_images", "0",
             "--sample_images", "0", "--batch_size", "256"], "batch_size", ["--model (now 4x128/4)"]),
    "gpt2rec": (["gpt2rec", "--data_path", "generated", "--use_cache", "false", "--gpt2_config", "4x256", "--batch_size", "4096"],
                "batch_size", ["--max_length (now 128 tokens) takes less, and so does --use_cache true, with which texts are encoded once", "fewer ranks"]),
    "mpnn": (["protein", "--variant", "mpnn", "--pdb_path", "generated:60:100", "--batch_tokens", "20000"], "batch_tokens",
             ["--max_protein_length (now 10000)", "--num_neighbors (now 48)"]),
    "mdm": (["protein", "--variant", "mdm", "--pdb_path", "generated:80:200", "--batch_size", "64"], "batch_size",
            ["--hidden_dim (now 256)", "fewer ranks"])}


def within(mib, *argv):
    return ["bash", "-c", f'ulimit -v {mib * 1024}; exec "$@"', "bash", *argv]


@pytest.mark.parametrize("name", ["jit", *(pytest.param(name, marks=pytest.mark.long) for name in sorted(set(LINES) - {"jit"}))])
def test_the_batch_that_fits_is_named_and_trains(run, lockstep, tmp_path, name):
    line, batch_flag, takes_less = LINES[name]
    done = run(within(MIB, lockstep, "run", *line, "--train_dir", tmp_path / "large", *QUICK))
    said = " ".join((done.stdout + done.stderr).split())
    assert done.returncode == 13, said
    found = re.search(r"at step 1: .*memory.*; a rank took \d+ at once, and (\d+) fit: give (--[^;]+?) for the same result, or (--\w+) "
                      r"(\d+) alone for a smaller batch; ", said)
    assert found, said
    assert found[3] == f"--{batch_flag}"
    for words in takes_less:
        assert words in said, f"{words!r} is not in: {said}"
    for way, flags in {"same_result": found[2].split(), "smaller_batch": [found[3], found[4]]}.items():
        done = run(within(MIB, lockstep, "run", *line, "--train_dir", tmp_path / way, *QUICK, *flags))
        assert done.returncode == 0, done.stdout + done.stderr
