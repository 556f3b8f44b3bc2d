"""--dataset generated and --dataset auto: what an image trains on when it is started as it is."""
import os

import pytest

from programs import text, write_interactions
from runs import Running, checkpoints, losses, records

QUICK = ["--maxlen", "50", "--status_port", "0"]


def auto(program, data, folder, *flags):
    """`program`: [lockstep, "run"] or [worker]."""
    return [*program, "sasrec", "--dataset", "auto", "--data_dir", data, "--train_dir", folder, "--max_steps", "4",
            "--log_every", "1", *QUICK, *flags]


def test_the_generated_data_set_is_learnt(run, lockstep, tmp_path):
    """Popularity's NDCG@10 is below 0.2 and its HR@10 below 0.35 (dataset_test); chance is 0.02 and 0.05."""
    done = run([lockstep, "run", "sasrec", "--dataset", "generated", "--train_dir", tmp_path / "run", "--nproc", "2",
                "--num_epochs", "25", *QUICK], cwd=tmp_path)
    assert done.returncode == 0, text(done)
    last = [record for record in records(tmp_path / "run") if record.get("evaluation")][-1]
    assert last["full_test_ndcg@10"] > 0.45 and last["full_test_hr@10"] > 0.65, last
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_the_generated_data_set_is_the_same_under_another_launcher(run, lockstep, worker, tmp_path):
    flags = ["sasrec", "--dataset", "generated", "--max_steps", "3", "--log_every", "1", "--threads", "1", *QUICK]
    assert run([lockstep, "run", *flags, "--train_dir", tmp_path / "agent", "--nproc", "1"]).returncode == 0
    assert run([worker, *flags, "--train_dir", tmp_path / "worker"]).returncode == 0
    assert losses(tmp_path / "agent") == losses(tmp_path / "worker")


def test_a_name_that_is_reserved_is_still_reached_by_a_path(run, lockstep, tmp_path):
    path = write_interactions(tmp_path / "generated")
    done = run([lockstep, "run", "sasrec", "--dataset", path, "--train_dir", tmp_path / "run", "--max_steps", "2", *QUICK])
    assert done.returncode == 0, text(done)
    assert f"{path} (user item)" in text(done)


@pytest.mark.parametrize("ways", [[], ["--nproc", "2"], ["--local_nodes", "2"]], ids=["alone", "2 ranks", "2 nodes"])
def test_without_data_the_generated_set_is_trained_on_and_said_once(run, lockstep, tmp_path, ways):
    done = run(auto([lockstep, "run"], tmp_path / "data", tmp_path / "run", *ways))
    assert done.returncode == 0, text(done)
    line = f"no data set in {tmp_path / 'data'}: training on a generated one (500 users, 200 items, planted transitions)"
    assert text(done).count(line) == 1, text(done)
    assert f'docker run -v "$PWD/data:{tmp_path / "data"}" IMAGE' in text(done)
    assert "dataset,generated\n" in (tmp_path / "run" / "args.txt").read_text()
    assert "--dataset auto" in text(done).split("resume")[-1]


def test_a_worker_without_an_agent_settles_it_too(run, worker, tmp_path):
    done = run(auto([worker], tmp_path / "data", tmp_path / "run"))
    assert done.returncode == 0, text(done)
    assert text(done).count("no data set in") == 1, text(done)
    assert "dataset,generated\n" in (tmp_path / "run" / "args.txt").read_text()
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "picture.jpg").touch()
    done = run(auto([worker], tmp_path / "data", tmp_path / "run"))
    assert done.returncode == 3 and "picture.jpg" in text(done), text(done)


def test_the_only_data_set_is_taken_by_its_own_name(run, lockstep, tmp_path):
    (tmp_path / "data").mkdir()
    path = write_interactions(tmp_path / "data" / "clicks.txt")
    (tmp_path / "data" / "README.txt").write_text("About the clicks\n")
    done = run(auto([lockstep, "run"], tmp_path / "data", "default"), cwd=tmp_path)
    assert done.returncode == 0, text(done)
    assert f"{path} (user item)" in text(done) and "generated" not in text(done)
    assert checkpoints(tmp_path / "clicks_default") == ["step-00000004"]


def test_auto_goes_on_where_it_stopped_and_so_does_the_name(run, lockstep, tmp_path):
    (tmp_path / "data").mkdir()
    write_interactions(tmp_path / "data" / "clicks.txt")
    command = auto([lockstep, "run"], tmp_path / "data", tmp_path / "run")
    for steps, dataset in ((4, "auto"), (8, "auto"), (12, "clicks")):
        words = [str(steps) if w == "4" else dataset if w == "auto" else w for w in command]
        done = run(words)
        assert done.returncode == 0, text(done)
        assert ("resumed from" in text(done)) == (steps > 4), text(done)
    assert sorted(losses(tmp_path / "run")) == list(range(1, 13))


def test_data_that_came_later_does_not_go_into_the_generated_run(run, lockstep, tmp_path):
    command = auto([lockstep, "run"], tmp_path / "data", tmp_path / "run")
    assert run(command).returncode == 0
    (tmp_path / "data").mkdir()
    write_interactions(tmp_path / "data" / "clicks.txt")
    done = run(command)
    assert done.returncode == 2, text(done)
    assert "--dataset is clicks in this command and generated in the checkpoint" in text(done)


@pytest.mark.parametrize("files, words", [
    (["a.txt", "b.inter"], ["2 data sets", "a.txt", "b.inter", "--dataset"]),
    (["picture.jpg", "video.mp4"], ["no data set", "picture.jpg", "video.mp4", "NAME.inter", "--dataset generated"]),
])
def test_what_is_not_one_data_set_ends_with_three(run, lockstep, tmp_path, files, words):
    (tmp_path / "data").mkdir()
    for name in files:
        write_interactions(tmp_path / "data" / name)
    done = run(auto([lockstep, "run"], tmp_path / "data", tmp_path / "run"))
    assert done.returncode == 3, text(done)
    for word in words:
        assert word in text(done), f"{word!r} is not in: {text(done)}"
    assert not (tmp_path / "run").exists()


def test_only_node_0_touches_the_volume(lockstep, tmp_path, free_port):
    """As in pods: all nodes are told the checkpoint folder, only node 0 has it; a second start goes on from there."""
    port = str(free_port())
    status = [str(free_port()), str(free_port())]
    volume, absent = tmp_path / "volume", tmp_path / "absent"
    absent.write_text("nobody makes a folder here")  # what even root cannot write under
    for attempt, steps in ((0, "6"), (1, "12")):
        nodes = [Running([lockstep, "run", "sasrec", "--dataset", "generated", "--max_steps", steps, "--log_every", "1",
                          *QUICK, "--status_port", status[node]], tmp_path,
                         LOCKSTEP_JOB="job", LOCKSTEP_NAMESPACE="default", LOCKSTEP_JOB_UID="uid-1",
                         LOCKSTEP_NODE_RANK=str(node), LOCKSTEP_NUM_NODES="2", LOCKSTEP_NPROC_PER_NODE="1",
                         LOCKSTEP_COORDINATOR=f"127.0.0.1:{port}", LOCKSTEP_POD_ATTEMPT=str(attempt),
                         LOCKSTEP_TOKEN="t", KUBERNETES_SERVICE_HOST="10.0.0.1",
                         LOCKSTEP_CHECKPOINT_DIR=str((volume, absent)[node]))
                 for node in range(2)]
        for node in nodes:
            assert node.end() == 0, nodes[0].output() + nodes[1].output()
        assert ("resumed from" in nodes[0].output()) == (attempt > 0)
        assert "absent" not in nodes[1].output()
    assert sorted(losses(volume / "job")) == list(range(1, 13))


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give the folder to somebody else")
def test_a_checkpoint_folder_of_another_user_is_named_with_what_to_do(run, lockstep, tmp_path):
    (tmp_path / "checkpoints").mkdir(mode=0o755)
    os.chown(tmp_path / "checkpoints", 65532, 65532)
    nobody = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"]  # root, as weak as other users
    done = run([*nobody, lockstep, "run", "sasrec", "--dataset", "generated", "--max_steps", "4", *QUICK], cwd=tmp_path,
               LOCKSTEP_CHECKPOINT_DIR=str(tmp_path / "checkpoints"))
    assert done.returncode == 4, text(done)
    assert f"the checkpoint folder {tmp_path / 'checkpoints'} is not writable" in text(done)
    assert "user 0 " in text(done) and "chown" in text(done)
