"""A TrainJob that is deleted and made again, as its pods see it: the same folder, another UID, a higher run number."""
import json

import pytest

from runs import SMALL_MODEL, checkpoints, losses


@pytest.fixture
def pod(run, lockstep, small_dataset, tmp_path):
    """pod(uid, number, *flags, steps=…, resume=…): node 0 of a job "sasrec" to its end; its termination message too."""
    def call(uid, number, *flags, steps, resume="SameConfig"):
        log = tmp_path / "termination-log"
        log.unlink(missing_ok=True)
        done = run([lockstep, "run", "sasrec", "--dataset", small_dataset, "--dropout_rate", "0.2", "--num_epochs",
                    1_000_000, "--max_steps", steps, "--log_every", "1", "--eval_every", "0", "--checkpoint_every", "10",
                    *SMALL_MODEL, *flags],
                   LOCKSTEP_NAMESPACE="team-a", LOCKSTEP_JOB="sasrec", LOCKSTEP_JOB_UID=uid, LOCKSTEP_RUN=str(number),
                   LOCKSTEP_POD_ATTEMPT="0", LOCKSTEP_NODE_RANK="0", LOCKSTEP_NUM_NODES="1", LOCKSTEP_NPROC_PER_NODE="1",
                   LOCKSTEP_CHECKPOINT_DIR=str(tmp_path / "volume"), LOCKSTEP_RESUME=resume,
                   LOCKSTEP_TERMINATION_LOG=str(log))
        return done, json.loads(log.read_text())
    return call


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "volume" / "sasrec"


def writer_of(folder, name):
    return json.loads((folder / name / "state.json").read_text())["job_uid"]


def test_goes_on_from_the_step_of_the_one_before_and_its_own_checkpoints_count(pod, folder):
    done, _ = pod("uid-1", 100, steps=20)
    assert done.returncode == 0, done.stdout + done.stderr
    again, words = pod("uid-2", 200, steps=40)
    assert again.returncode == 0, again.stdout + again.stderr
    origin = f"resumed from {folder}/step-00000020, which an earlier TrainJob of this name wrote"
    assert origin in again.stdout
    assert words["origin"] == origin and words["progress"]["step"] == 40
    assert sorted(losses(folder)) == list(range(1, 41))
    assert writer_of(folder, "step-00000040") == "uid-2"
    # Its generations are as low as those of the first one were: the next start takes its last step all the same.
    last, _ = pod("uid-2", 200, steps=50)
    assert last.returncode == 0 and f"resumed from {folder}/step-00000040" in last.stdout, last.stdout + last.stderr


def test_completes_without_a_step_where_the_one_before_was_complete_and_says_so(pod, folder):
    assert pod("uid-1", 100, steps=20)[0].returncode == 0
    again, words = pod("uid-2", 200, steps=20)
    assert again.returncode == 0, again.stdout + again.stderr
    assert "already at step 20 of 20: nothing to do" in again.stdout
    assert "step-00000020, which an earlier TrainJob of this name wrote" in words["origin"]
    assert words["progress"] is None
    assert writer_of(folder, "step-00000020") == "uid-1"


@pytest.mark.parametrize("uid, number", [("uid-1", 100), ("uid-2", 200)])
def test_with_other_flags_it_is_refused_by_a_word_and_the_flags(pod, folder, uid, number):
    assert pod("uid-1", 100, steps=20)[0].returncode == 0
    refused, words = pod(uid, number, "--lr", "0.5", steps=40)
    assert refused.returncode == 2
    assert words["exitCode"] == 2 and words["reason"] == "ConfigurationChanged"
    assert "--lr is 0.5 in this command and 0.001 in the checkpoint" in words["message"]
    taken, _ = pod(uid, number, "--lr", "0.5", "--resume", folder / "step-00000020", steps=40)
    assert taken.returncode == 0, taken.stdout + taken.stderr
    assert max(losses(folder)) == 40


def test_with_same_job_it_is_refused(pod, folder):
    assert pod("uid-1", 100, steps=20)[0].returncode == 0
    refused, words = pod("uid-2", 200, steps=40, resume="SameJob")
    assert refused.returncode == 2 and words["reason"] == "InvalidUsage"
    assert "uid-1" in words["message"] and "spec.checkpoint.resume" in words["message"]
    assert checkpoints(folder) == ["step-00000010", "step-00000020"]


def test_with_never_it_begins_anew_and_keeps_the_others_checkpoints_aside(pod, folder):
    assert pod("uid-1", 100, steps=20)[0].returncode == 0
    anew, words = pod("uid-2", 200, "--lr", "0.5", steps=10, resume="Never")
    assert anew.returncode == 0, anew.stdout + anew.stderr
    assert words["origin"].startswith("initialised from seed")
    assert sorted(losses(folder)) == list(range(1, 11))
    assert checkpoints(folder) == ["step-00000010"] and writer_of(folder, "step-00000010") == "uid-2"
    aside = sorted(path.name for path in folder.glob(".stale-*"))
    assert [name[:20] for name in aside] == [".stale-step-00000010", ".stale-step-00000020"]
    assert {writer_of(folder, name) for name in aside} == {"uid-1"}
    own, words = pod("uid-2", 200, "--lr", "0.5", steps=20, resume="Never")
    assert own.returncode == 0 and words["origin"] == f"resumed from {folder}/step-00000010", own.stdout + own.stderr


def test_a_variable_that_nobody_can_read_is_named(pod):
    refused, words = pod("uid-1", "tomorrow", steps=20)
    assert refused.returncode == 2
    assert 'LOCKSTEP_RUN is "tomorrow", expected' in words["message"]
