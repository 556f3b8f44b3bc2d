"""lockstep-worker under other launchers: torchrun word for word, torch.distributed.launch, Slurm, MPI, a pod, alone."""
import os
import subprocess
import sys

import pytest

from programs import clean_environment, text
from runs import SMALL_MODEL, losses


def flags(dataset, folder):
    return ["sasrec", "--dataset", str(dataset), "--train_dir", str(folder), "--max_steps", "20", "--log_every", "1",
            "--eval_every", "0", "--threads", "1", *SMALL_MODEL]


@pytest.fixture
def reference(run, lockstep, small_dataset, tmp_path):
    done = run([lockstep, "run", *flags(small_dataset, tmp_path / "reference"), "--nproc", "2"])
    assert done.returncode == 0, done.stdout + done.stderr
    return losses(tmp_path / "reference")


def with_worker_on_path(worker, **extra):
    environment = clean_environment(**extra)
    return {**environment, "PATH": f"{worker.parent}:{os.path.dirname(sys.executable)}:{environment['PATH']}"}


def ranks(worker, arguments, environments):
    """Starts one worker per environment; the outputs, after all have ended with 0."""
    processes = [subprocess.Popen([worker, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                  env=clean_environment(**environment)) for environment in environments]
    outputs = [process.communicate(timeout=120)[0] for process in processes]
    for process, output in zip(processes, outputs):
        assert process.returncode == 0, output
    return outputs


def test_torchrun_word_for_word(worker, small_dataset, tmp_path, reference):
    line = ["torchrun", "--no-python", "--nproc_per_node=2", "--master_port=29501", "lockstep-worker",
            *flags(small_dataset, tmp_path / "run")]
    done = subprocess.run(line, capture_output=True, text=True, check=False, timeout=180, env=with_worker_on_path(worker))
    assert done.returncode == 0, done.stdout + done.stderr
    assert losses(tmp_path / "run") == reference


def test_torchrun_restarts_a_killed_worker_and_the_curve_stays(worker, run, lockstep, small_dataset, tmp_path,
                                                                  free_port):
    """The launcher's store outlives the restart: nothing of the first attempt may be read by the second."""
    from runs import Running
    arguments = [a if a != "20" else "600" for a in flags(small_dataset, tmp_path / "run")] + ["--checkpoint_every", "10"]
    undisturbed = [a if a != str(tmp_path / "run") else str(tmp_path / "undisturbed") for a in arguments]
    assert run([lockstep, "run", *undisturbed, "--nproc", "2"]).returncode == 0
    running = Running(["torchrun", "--no-python", "--nproc_per_node=2", "--max-restarts=1",
                       f"--master_port={free_port()}", "lockstep-worker", *arguments], tmp_path,
                      PATH=with_worker_on_path(worker)["PATH"])
    running.wait_for_step(tmp_path / "run", 25)
    running.kill_worker(1)
    assert running.end() == 0, running.output()
    assert losses(tmp_path / "run") == losses(tmp_path / "undisturbed")


def test_torch_distributed_launch(worker, small_dataset, tmp_path, reference, free_port):
    line = [sys.executable, "-m", "torch.distributed.launch", "--use_env", "--no_python", "--nproc_per_node=2",
            f"--master_port={free_port()}", "lockstep-worker", *flags(small_dataset, tmp_path / "run")]
    done = subprocess.run(line, capture_output=True, text=True, check=False, timeout=180, env=with_worker_on_path(worker))
    assert done.returncode == 0, done.stdout + done.stderr
    assert losses(tmp_path / "run") == reference


def test_slurm(worker, small_dataset, tmp_path, reference, free_port):
    port = str(free_port())
    ranks(worker, [*flags(small_dataset, tmp_path / "run"), "--master_port", port],
          [{"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_PROCID": str(r), "SLURM_LOCALID": str(r),
            "SLURM_NODEID": "0", "SLURM_NTASKS": "2", "SLURM_STEP_NUM_TASKS": "2", "SLURM_NNODES": "1",
            "SLURM_STEP_NUM_NODES": "1", "SLURM_STEP_TASKS_PER_NODE": "2", "SLURM_TASKS_PER_NODE": "2",
            "SLURM_STEP_NODELIST": "localhost", "SLURM_JOB_NODELIST": "localhost", "SLURM_NODELIST": "localhost"}
           for r in range(2)])
    assert losses(tmp_path / "run") == reference


def test_mpi(worker, small_dataset, tmp_path, reference, free_port):
    port = str(free_port())
    ranks(worker, flags(small_dataset, tmp_path / "run"),
          [{"OMPI_COMM_WORLD_RANK": str(r), "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": str(r),
            "OMPI_COMM_WORLD_LOCAL_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port} for r in range(2)])
    assert losses(tmp_path / "run") == reference


def test_mpich(worker, small_dataset, tmp_path, reference, free_port):
    """The variables of `mpiexec.hydra -n 2` (MPICH 4, Intel MPI)."""
    port = str(free_port())
    ranks(worker, flags(small_dataset, tmp_path / "run"),
          [{"PMI_RANK": str(r), "PMI_SIZE": "2", "MPI_LOCALRANKID": str(r), "MPI_LOCALNRANKS": "2",
            "MASTER_PORT": port} for r in range(2)])
    assert losses(tmp_path / "run") == reference


KUBEFLOW = {"PET_NNODES": "2", "PET_NPROC_PER_NODE": "1", "PET_NODE_RANK": "1", "PET_MASTER_ADDR": "x-node-0-0.x",
            "PET_MASTER_PORT": "29400", "JOB_COMPLETION_INDEX": "1", "KUBERNETES_SERVICE_HOST": "10.0.0.1"}


@pytest.mark.parametrize("program", ["agent", "worker"])
@pytest.mark.parametrize("environment, says", [
    (KUBEFLOW, ["PET_NNODES=2 (Kubeflow Trainer)", "--nnodes 2 --node_rank $PET_NODE_RANK"]),
    ({"LWS_GROUP_SIZE": "3", "LWS_WORKER_INDEX": "0"}, ["LWS_GROUP_SIZE=3 (LeaderWorkerSet)", "--nnodes 3"]),
    ({"SKYPILOT_NUM_NODES": "2", "SKYPILOT_NODE_RANK": "0"}, ["SKYPILOT_NUM_NODES=2 (SkyPilot)", "--nnodes 2"]),
    ({"VC_TASK_INDEX": "0", "VC_MASTER_NUM": "1", "VC_WORKER_NUM": "2"},
     ["VC_MASTER_NUM=1, VC_WORKER_NUM=2 (Volcano)", "--nnodes 3"]),
    ({"PMIX_RANK": "1"}, ["PMIX_RANK=1 says which rank this is", "unset PMIX_RANK"]),
    ({"JOB_COMPLETION_INDEX": "1"}, ["JOB_COMPLETION_INDEX=1", "--nnodes 1 trains each alone"]),
])
def test_one_of_several_does_not_train_alone(run, lockstep, worker, small_dataset, tmp_path, program, environment, says):
    line = [lockstep, "run"] if program == "agent" else [worker]
    done = run([*line, *flags(small_dataset, tmp_path / "run")], **environment)
    assert done.returncode == 2, text(done)
    for words in says:
        assert words in text(done)


def test_the_ranks_that_share_a_machine_share_its_memory(run, lockstep, worker, small_dataset, tmp_path, free_port):
    """Whoever started them: the start table counts them all."""
    outputs = ranks(worker, flags(small_dataset, tmp_path / "torchrun"),
                    [{"RANK": str(r), "WORLD_SIZE": "2", "LOCAL_RANK": str(r), "LOCAL_WORLD_SIZE": "2",
                      "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)} for port in [free_port()] for r in range(2)])
    assert "(2 ranks: embedding" in outputs[0]
    done = run([lockstep, "run", *flags(small_dataset, tmp_path / "pod")], LOCKSTEP_NPROC_PER_NODE="2")
    assert done.returncode == 0 and "(2 ranks: embedding" in done.stdout, done.stdout + done.stderr


def test_two_pods_with_one_process_each(worker, small_dataset, tmp_path, reference, free_port):
    port = str(free_port())
    volume = tmp_path / "volume"
    ranks(worker, flags(small_dataset, "unused"),
          [{"LOCKSTEP_JOB": "job", "LOCKSTEP_NAMESPACE": "default", "LOCKSTEP_JOB_UID": "uid-1",
            "LOCKSTEP_NODE_RANK": str(r), "LOCKSTEP_NUM_NODES": "2", "LOCKSTEP_NPROC_PER_NODE": "1",
            "LOCKSTEP_COORDINATOR": "127.0.0.1:29400", "LOCKSTEP_CHECKPOINT_DIR": str(volume),
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port} for r in range(2)])
    assert losses(volume / "job") == reference


def test_an_indexed_job(worker, small_dataset, tmp_path, reference, free_port):
    port = str(free_port())
    ranks(worker, [*flags(small_dataset, tmp_path / "run"), "--nnodes", "2"],
          [{"JOB_COMPLETION_INDEX": str(r), "KUBERNETES_SERVICE_HOST": "10.0.0.1", "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": port} for r in range(2)])
    assert losses(tmp_path / "run") == reference


def test_alone_with_the_same_curve(run, worker, small_dataset, tmp_path, reference):
    done = run([worker, *flags(small_dataset, tmp_path / "run")])
    assert done.returncode == 0, done.stdout + done.stderr
    assert "no GPU found, training on the CPU" in done.stdout
    for step, loss in losses(tmp_path / "run").items():
        assert loss == pytest.approx(reference[step], rel=1e-5)


def test_master_port_alone_is_fine(run, worker, small_dataset, tmp_path):
    done = run([worker, *flags(small_dataset, tmp_path / "run")], MASTER_PORT="29777")
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_lost_peer_ends_the_others_with_ten(worker, small_dataset, tmp_path, free_port):
    from runs import Running
    port = str(free_port())
    endless = [a if a != "20" else "1000000" for a in flags(small_dataset, tmp_path / "run")]
    both = [Running([worker, *endless], tmp_path, RANK=str(r), WORLD_SIZE="2", LOCAL_RANK=str(r), LOCAL_WORLD_SIZE="2",
                    MASTER_ADDR="127.0.0.1", MASTER_PORT=port) for r in range(2)]
    both[0].wait_for_step(tmp_path / "run", 10)
    both[1].process.kill()
    assert both[0].end() == 10, both[0].output()
    both[1].end()
