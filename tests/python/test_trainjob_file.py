"""The same TrainJob file runs here: `lockstep run -f`. What is wrong with a file is said by `lockstep validate`."""
import pytest

from programs import ROOT, write_interactions
from runs import checkpoints, losses

FLAGS = ["--max_steps", "6", "--log_every", "1", "--maxlen", "12", "--hidden_units", "16", "--batch_size", "12",
         "--threads", "1"]
JOB = """\
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: datasets}
---
apiVersion: lockstep.dev/v1
kind: TrainJob
metadata: {name: sasrec}
spec:
  trainer:
    image: lockstep/runner:0.1.0
    args: [run, sasrec, --dataset, /data/small.txt, %s]
    numNodes: 2
    env: [{name: OMP_NUM_THREADS, value: "1"}]
    podTemplate:
      spec:
        containers: [{name: trainer, volumeMounts: [{name: data, mountPath: /data}]}]
        volumes: [{name: data, emptyDir: {}}]
  checkpoint:
    volume: {persistentVolumeClaim: {claimName: ckpt}}
"""


@pytest.fixture
def folder(tmp_path):
    """With a TrainJob's file and the data that its pods would have."""
    (tmp_path / "data").mkdir()
    write_interactions(tmp_path / "data/small.txt")
    flags = ", ".join(f'"{flag}"' for flag in FLAGS)
    (tmp_path / "job.yaml").write_text(JOB % flags, encoding="utf-8")
    return tmp_path


def test_a_file_runs_as_its_flags_would(run, lockstep, folder):
    done = run([lockstep, "run", "-f", "job.yaml", "--mount", "/data=./data", "--status_port", "0"], cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    assert ("job.yaml: TrainJob sasrec: 2 nodes on this machine; /data is ./data; checkpoints in ./checkpoints/sasrec"
            in done.stderr)
    assert ("job.yaml: for a cluster, and ignored here: image, podTemplate (but for mounts, env), checkpoint.volume"
            in done.stderr)
    # The way to go on is the command that was given.
    assert "lockstep run -f job.yaml --mount /data=./data" in done.stdout
    by_flags = run([lockstep, "run", "sasrec", "--dataset", "data/small.txt", "--local_nodes", "2", "--train_dir",
                    folder / "by_flags", "--status_port", "0", *FLAGS], cwd=folder)
    assert by_flags.returncode == 0, by_flags.stdout + by_flags.stderr
    assert losses(folder / "checkpoints/sasrec") == losses(folder / "by_flags")
    assert checkpoints(folder / "checkpoints/sasrec") == checkpoints(folder / "by_flags")


def test_flags_win_over_the_file_and_a_second_run_goes_on(run, lockstep, folder):
    words = [lockstep, "run", "-f", "job.yaml", "--dataset", "data/small.txt", "--local_nodes", "auto", "--mount",
             "/checkpoints=out", "--status_port", "0"]
    assert run([*words, "--max_steps", "3"], cwd=folder).returncode == 0
    done = run(words, cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "nodes as the command line says" in done.stderr
    assert sorted(losses(folder / "out/sasrec")) == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("change, says", [
    (("", ""), "job.yaml: spec.trainer.args[3]: /data/small.txt is not on this machine"),
    (("image:", "imaeg:"), "job.yaml:10:5: spec.trainer.imaeg: is not a field of spec.trainer; did you mean image?"),
    (("    numNodes", "\tnumNodes"), "job.yaml:"),
    (("numNodes: 2", "numNodes: 2\n    numNodes: 3"), 'the key "numNodes" is given twice in one map, first in line 12'),
    (("lockstep.dev/v1\nkind: TrainJob", "v1\nkind: ConfigMap"), "job.yaml: holds no TrainJob"),
    (("kind: TrainJob", "kind: TrainJobs"), "job.yaml:6:1: kind: is \"TrainJobs\", expected TrainJob"),
    (("image: lockstep/runner:0.1.0", "image: i\n    launcher: None"), "spec.trainer.launcher: is None"),
    (("--max_steps", "--max_stepps"), "unknown flag --max_stepps; did you mean --max_steps?"),
])
def test_what_cannot_run_is_refused_before_anything_starts(run, lockstep, folder, change, says):
    text = (folder / "job.yaml").read_text(encoding="utf-8").replace(*change)
    (folder / "job.yaml").write_text(text, encoding="utf-8")
    mounts = [] if change == ("", "") else ["--mount", "/data=./data"]
    done = run([lockstep, "run", "-f", "job.yaml", *mounts], cwd=folder)
    assert done.returncode == 2 and done.stdout == ""
    assert says in done.stderr
    assert not (folder / "checkpoints").exists()


# --- files that nobody meant to write


def nested(depth):
    return "{a: " * depth + "1" + "}" * depth


def bomb():
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 20)]
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("text, says", [
    ("a:\n\tb: 1\n", "job.yaml:2:"),
    ("a: 1\na: 2\n", "first in line 1"),
    (nested(100_000), "nested deeper than 64 levels"),
    ("[" * 100_000 + "]" * 100_000, "nested deeper than 64 levels"),
    (bomb(), "more than 100000 values, aliases written out"),
    ("kind: A\0\n", "holds a NUL byte"),
    ("a: &a [*a]\n", "an alias inside of what it stands for"),
    ("- " * 2000 + "a\n", "nested deeper than 64 levels"),
    ("x" * 9_000_000, "8388609 bytes; expected at most 8388608"),
    ("\n".join(f"k{i}: {i}" for i in range(200_000)), "more than 100000 values"),
    ("a: \udcff\n", "is not UTF-8"),
    ("", "holds no TrainJob"),
])
def test_a_hostile_file_ends_in_a_line_and_soon(run, lockstep, tmp_path, text, says):
    (tmp_path / "job.yaml").write_bytes(text.encode("utf-8", "surrogateescape"))
    done = run([lockstep, "validate", "-f", "job.yaml"], cwd=tmp_path, timeout=30)
    assert done.returncode == 2
    assert says in done.stdout and done.stdout.count("\n") == 1 and len(done.stdout) < 400


def test_the_example_is_valid(run, lockstep):
    done = run([lockstep, "validate", "-f", ROOT / "manifests/examples"])
    assert done.returncode == 0, done.stdout + done.stderr
    assert "TrainJob sasrec is valid" in done.stdout
