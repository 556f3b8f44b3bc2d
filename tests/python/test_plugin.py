"""Models of a user's own (--plugin): the example, built against an installed Lockstep, and what a plugin does wrong."""
import json
import os
import re
import shutil
import signal

import pytest

from plugin_build import EXAMPLE, build_example, build_plugin, do
from programs import ROOT
from runs import Running, checkpoints, equal_weights, evaluations, losses, weights

STEPS = 300
TEXT = ROOT / "LICENSE"
SMALL = ["--context", 32, "--width", 32, "--num_blocks", 2, "--num_heads", 2, "--batch_size", 16, "--status_port", 0]


@pytest.fixture(scope="session")
def byte_lm(installed, tmp_path_factory):
    """The example, outside of the tree."""
    return build_example(tmp_path_factory.mktemp("byte_lm"), installed)


@pytest.fixture(scope="session")
def faulty(installed, tmp_path_factory):
    """A plugin whose --fault says what it does wrong. It includes every header that is installed."""
    base = tmp_path_factory.mktemp("faulty")
    shutil.copy(ROOT / "tests/python/plugins/faulty.cc", base)
    include = installed / "include/lockstep"
    headers = sorted(path.relative_to(include) for path in (include / "runner").rglob("*.h"))
    (base / "all_headers.h").write_text("".join(f'#include "{header}"\n' for header in headers))
    (base / "CMakeLists.txt").write_text(
        (EXAMPLE / "CMakeLists.txt").read_text().replace("byte_lm", "faulty"))
    return build_plugin(base, base / "build", installed)


def command(lockstep, byte_lm, folder, *flags, steps=STEPS):
    return [lockstep, "run", "byte_lm", "--plugin", byte_lm, "--text", TEXT, "--train_dir", folder, "--nproc", 2,
            "--num_epochs", 1_000_000, "--max_steps", steps, "--log_every", 1, "--eval_every", 0,
            "--checkpoint_every", 10, *SMALL, *flags]


@pytest.fixture(scope="module")
def undisturbed(lockstep, byte_lm, tmp_path_factory):
    """The folder of a run that nothing happened to."""
    folder = tmp_path_factory.mktemp("undisturbed") / "run"
    do(*command(lockstep, byte_lm, folder))
    return folder


def test_the_example_learns(undisturbed):
    found = losses(undisturbed)
    assert list(found) == list(range(1, STEPS + 1))
    assert found[1] == pytest.approx(5.545, abs=0.05)  # log 256: it knows nothing yet
    assert found[STEPS] < 3.3


def test_the_whole_run_is_killed_and_goes_on_bit_for_bit(run, lockstep, byte_lm, tmp_path, undisturbed):
    folder = tmp_path / "run"
    running = Running(command(lockstep, byte_lm, folder), tmp_path)
    running.wait_for_step(folder, 25)
    os.killpg(running.process.pid, signal.SIGKILL)
    running.end()
    assert max(losses(folder)) < STEPS
    done = run(command(lockstep, byte_lm, folder))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "resumed from" in done.stdout
    assert equal_weights(weights(folder), weights(undisturbed))
    assert losses(folder) == losses(undisturbed)


def test_a_killed_rank_comes_back(lockstep, byte_lm, tmp_path, undisturbed):
    folder = tmp_path / "run"
    running = Running(command(lockstep, byte_lm, folder), tmp_path)
    running.wait_for_step(folder, 25)
    running.kill_worker(1)
    assert running.end() == 0, running.output()
    assert losses(folder) == losses(undisturbed)
    assert equal_weights(weights(folder), weights(undisturbed))


def test_more_ranks_do_not_change_the_curve(lockstep, byte_lm, tmp_path, undisturbed):
    folder = tmp_path / "run"
    do(*command(lockstep, byte_lm, folder, "--nproc", 1, steps=20))
    for step, loss in losses(folder).items():
        assert loss == pytest.approx(losses(undisturbed)[step], rel=1e-4)


def test_the_example_of_torch_modules_learns_and_is_the_same_with_one_rank(installed, lockstep, tmp_path):
    digits = build_example(tmp_path, installed, ROOT / "examples/digits")
    found = []
    for ranks in (2, 1):
        folder = tmp_path / f"run{ranks}"
        do(lockstep, "run", "digits", "--plugin", digits, "--train_dir", folder, "--nproc", ranks, "--num_epochs", 6,
           "--log_every", 1, "--status_port", 0)
        found.append(losses(folder))
    two, one = found
    assert [one[step] for step in range(1, 21)] == pytest.approx([two[step] for step in range(1, 21)], rel=1e-4)
    assert evaluations(folder)[-1]["valid_accuracy"] > 0.5


def test_its_evaluation_and_its_task(run, lockstep, byte_lm, tmp_path):
    folder = tmp_path / "run"
    done = run(command(lockstep, byte_lm, folder, "--nproc", 1, steps=10))
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"epoch 0: \d\.\d+ bits a byte", done.stdout)
    assert f"{byte_lm} (sha256 " in done.stdout
    written = do(lockstep, "byte_lm", "write", "--plugin", byte_lm, "--checkpoint", folder, "--prompt", "Licen",
                 "--bytes", 30)
    assert written.startswith("Licen") and len(written) > 20
    again = do(lockstep, "byte_lm", "write", "--plugin", byte_lm, "--checkpoint", folder, "--prompt", "Licen",
               "--bytes", 30)
    assert again == written
    refused = run([lockstep, "byte_lm", "write", "--plugin", byte_lm, "--checkpoint", folder, "--prompt", ""])
    assert refused.returncode == 2 and "--prompt needs a value (a text), found an empty one" in refused.stdout + refused.stderr


def test_it_is_listed_with_its_flags(lockstep, byte_lm):
    listed = do(lockstep, "workloads", "--plugin", byte_lm)
    assert "byte_lm - a small language model on the bytes of a text" in listed and "sasrec - " in listed
    assert "lockstep run byte_lm --plugin FILE --help" in listed and "demo byte_lm" not in listed
    help_text = do(lockstep, "run", "byte_lm", "--plugin", byte_lm, "--help")
    assert "--num_blocks {an integer from 1 to 1024}=4" in help_text
    assert "--optimizer {adam or adamw}=adamw" in help_text and "Example: lockstep run byte_lm --plugin byte_lm.so" in help_text
    assert "writes a text, byte by byte" in do(lockstep, "byte_lm", "--plugin", byte_lm, "--help")
    task_help = do(lockstep, "byte_lm", "write", "--plugin", byte_lm, "--help")
    assert "--temperature" in task_help and "--context" in task_help


@pytest.mark.parametrize("flags, message", [
    (["--width", 30, "--num_heads", 4], "--width 30 is not divisible by --num_heads 4"),
    (["--width", "wide"], '--width: found "wide", expected an integer from 1 to 65536'),
    (["--widht", 32], "unknown flag --widht; did you mean --width?"),
    (["--text", "/nowhere.txt"], "--text /nowhere.txt: cannot be read; expected a file"),
    (["--text", "/"], "--text /: cannot be read; expected a file"),
])
def test_its_flags_are_checked(run, lockstep, byte_lm, tmp_path, flags, message):
    done = run([lockstep, "run", "byte_lm", "--plugin", byte_lm, "--text", TEXT, "--train_dir", tmp_path / "run",
                "--status_port", 0, *flags])
    assert done.returncode in (2, 3), done.stdout + done.stderr
    assert message in done.stdout + done.stderr


def test_a_yaml_file_may_have_its_flags_and_not_the_plugin(run, lockstep, byte_lm, tmp_path):
    good = tmp_path / "good.yaml"
    good.write_text(f"text: {TEXT}\ncontext: 32\nwidth: 32\nmax_steps: 1\nstatus_port: 0\n")
    assert run([lockstep, "run", "byte_lm", "--plugin", byte_lm, "--config", good, "--train_dir",
                tmp_path / "run"]).returncode == 0
    bad = tmp_path / "bad.yaml"
    bad.write_text(f"plugin: {byte_lm}\n")
    done = run([lockstep, "run", "byte_lm", "--plugin", byte_lm, "--config", bad])
    assert done.returncode == 2
    assert f"plugin: belongs on the command line (--plugin FILE): it says which workloads there are ({bad}:1)" in done.stderr


def refused(run, lockstep, plugin, *flags, workload="byte_lm"):
    done = run([lockstep, "run", workload, "--plugin", plugin, "--status_port", 0, *flags])
    assert done.returncode == 2, done.stdout + done.stderr
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    return done.stderr.replace(str(plugin), "PLUGIN")


def small_plugin(folder, code):
    """A shared object without torch."""
    source = folder / "small.cc"
    source.write_text(code)
    do("g++", "-shared", "-fPIC", "-o", folder / "small.so", source)
    return folder / "small.so"


RECORD = """
struct Record { unsigned long size; const char *lockstep, *headers, *torch, *abi; void (*fill)(void*); };
extern "C" const Record* lockstep_plugin() { static const Record record = {%s, %s, 0}; return &record; }
"""


@pytest.fixture(scope="session")
def made_with(installed):
    """version of Lockstep, digest of its headers"""
    package = (installed / "lib/cmake/Lockstep/LockstepConfig.cmake").read_text()
    return [re.search(rf'LOCKSTEP_PLUGIN_{name}=\\"([^"\\]+)\\"', package).group(1) for name in ("VERSION", "HEADERS")]


def test_a_file_that_is_missing(run, lockstep):
    assert "--plugin PLUGIN: No such file or directory; expected a shared object" in \
        refused(run, lockstep, "/nowhere/x.so")


def test_a_flag_without_its_file(run, lockstep):
    done = run([lockstep, "run", "byte_lm", "--plugin"])
    assert done.returncode == 2
    assert "--plugin needs a value: the file of a model of your own (my_model.so)" in done.stderr


def test_a_plugins_name_without_the_plugin(run, lockstep):
    done = run([lockstep, "run", "byte_lm"])
    assert done.returncode == 2
    assert 'unknown workload "byte_lm"' in done.stderr
    assert "a model of your own needs --plugin FILE.so on the command line" in done.stderr
    done = run([lockstep, "byte_lm", "write"])
    assert done.returncode == 2
    assert 'unknown command "byte_lm"; a model of your own needs --plugin FILE.so' in done.stderr


def test_another_name_than_the_plugins(run, lockstep, byte_lm):
    message = refused(run, lockstep, byte_lm, workload="byte_lmm")
    assert 'unknown workload "byte_lmm"; did you mean "byte_lm"?' in message
    done = run([lockstep, "byte_l", "write", "--plugin", byte_lm])
    assert done.returncode == 2 and "the plugin's workload is called byte_lm" in done.stderr


def test_a_folder(run, lockstep, tmp_path):
    assert "--plugin PLUGIN: is no file; expected a shared object" in refused(run, lockstep, tmp_path)


@pytest.mark.parametrize("content", ["", "int main() {}\n", "\x7fELF and no more"])
def test_no_shared_object(run, lockstep, tmp_path, content):
    path = tmp_path / "model.so"
    path.write_text(content)
    message = refused(run, lockstep, path)
    assert "--plugin PLUGIN: cannot be loaded: " in message and "expected a shared object" in message


def test_without_the_function(run, lockstep, tmp_path):
    plugin = small_plugin(tmp_path, "int other_function() { return 1; }\n")
    assert "--plugin PLUGIN: has no function lockstep_plugin(): expected LOCKSTEP_PLUGIN(…) in its code" in \
        refused(run, lockstep, plugin)


@pytest.mark.parametrize("part, message", [
    ("size", "was compiled for a record of the size 8, and this is 48"),
    ("lockstep", "was compiled for Lockstep 0.0.9, and this is "),
    ("headers", "was compiled with other headers of Lockstep (000000000000) than this lockstep-worker ("),
    ("torch", "was compiled for torch 1.0.0, and this is "),
    ("abi", "was compiled for another library than libstdc++, and this is libstdc++ with _GLIBCXX_USE_CXX11_ABI=1"),
])
def test_of_another_version(run, lockstep, tmp_path, made_with, part, message):
    version, headers = made_with
    import torch
    texts = {"lockstep": version, "headers": headers, "torch": torch.__version__.split("+")[0],
             "abi": "libstdc++ with _GLIBCXX_USE_CXX11_ABI=1"}
    wrong = {"lockstep": "0.0.9", "headers": "0" * 12, "torch": "1.0.0", "abi": "another library than libstdc++"}
    if part in texts:
        texts[part] = wrong[part]
    size = "8" if part == "size" else "sizeof(Record)"
    plugin = small_plugin(tmp_path, RECORD % (size, ", ".join(json.dumps(text) for text in texts.values())))
    found = refused(run, lockstep, plugin)
    assert "--plugin PLUGIN: " + message in found
    assert "compile it again with find_package(Lockstep) of this Lockstep" in found


def test_undefined_symbols(run, lockstep, tmp_path):
    plugin = small_plugin(tmp_path, "namespace lockstep { int lost_function(int); }\n"
                                    'extern "C" int lockstep_plugin() { return lockstep::lost_function(1); }\n')
    assert "--plugin PLUGIN: uses lockstep::lost_function(int), which is neither in it nor in lockstep-worker: " in \
        refused(run, lockstep, plugin)


def test_compiled_on_a_newer_system(run, lockstep, tmp_path):
    newer = tmp_path / "newer"
    newer.mkdir()
    (newer / "libm.cc").write_text('extern "C" int of_a_newer_system() { return 1; }\n')
    (newer / "libm.map").write_text("GLIBC_9.99 { global: of_a_newer_system; };\n")
    do("g++", "-shared", "-fPIC", "-nostdlib", "-Wl,-soname,libm.so.6", f"-Wl,--version-script={newer}/libm.map",
       "-o", newer / "libm.so.6", newer / "libm.cc")
    source = tmp_path / "small.cc"
    source.write_text('extern "C" int of_a_newer_system();\n'
                      'extern "C" int lockstep_plugin() { return of_a_newer_system(); }\n')
    plugin = tmp_path / "small.so"
    do("g++", "-shared", "-fPIC", "-nostdlib", "-o", plugin, source, newer / "libm.so.6")
    message = refused(run, lockstep, plugin)
    assert "--plugin PLUGIN: was compiled on a newer system than this one: " in message
    assert "version `GLIBC_9.99' not found" in message
    assert "compile it in the image lockstep/sdk of this Lockstep (docs/your-own-model.md)" in message


def test_it_throws_while_it_is_loaded(run, lockstep, tmp_path):
    plugin = small_plugin(tmp_path, "#include <stdexcept>\n"
                                    'extern "C" int* lockstep_plugin() { throw std::runtime_error("not today"); }\n')
    assert "--plugin PLUGIN: threw while it was loaded: not today" in refused(run, lockstep, plugin)


def test_it_dies_while_it_is_loaded(run, lockstep, tmp_path):
    plugin = small_plugin(tmp_path, "#include <cstdlib>\n"
                                    "static const int dies = (std::abort(), 0);\n")
    message = refused(run, lockstep, plugin)
    assert "lockstep-worker ended with SignalABRT (134) while it loaded the plugin" in message


# What the run of a plugin that does something wrong ends with.
FAULTS = {
    "throws_in_make": (1, "make() threw an exception: no model today"),
    "makes_nothing": (2, "make() gave neither a workload nor a Failure"),
    "throws_in_check": (2, "its flags threw an exception: no check"),
    "check_throws_a_number": (2, "its flags threw something that is no std::exception"),
    "no_term": (2, "info() names no loss term: at least one is needed"),
    "no_parameter": (2, "groups() has no parameter: there is nothing to train"),
    "no_leaf": (2, "groups(): the parameter w is not trained: expected a leaf that requires a gradient"),
    "one_name": (2, "groups(): the parameter w is there twice: each needs a name of its own"),
    "throws_in_initialize": (1, "initialize() threw an exception: no values today"),
    "throws_in_fetch": (1, "fetch() threw an exception: no batch today"),
    "throws_in_loss": (1, "loss() threw an exception: no loss today"),
    "throws_a_number": (1, "loss() threw something that is no std::exception"),
    "torch_error": (1, "loss() threw an error of torch: "),
    "weights": (3, "fetch() gave 2 weights, expected one for each loss term: 1"),
    "sums": (2, "loss() gave 2 sums, expected one for each loss term: 1"),
    "mean": (2, "loss(): the term loss is 1.000000 for 4 samples, and 1.000000 and 1.000000 for their halves: a mean, expected "
                "the sum over the samples (at::Reduction::Sum)"),
    "undefined": (2, "loss(): the term loss is undefined, expected a scalar of Float: the sum over the batch"),
    "no_scalar": (2, "loss(): the term loss is Float [2], expected a scalar of Float: the sum over the batch"),
    "count": (2, "groups(): it had 1 parameter at the start and has 2 now"),
    "groups": (2, "groups() gave 1 group at the start and gives 2 now"),
    "shape": (2, "groups(): the parameter w was Float [4] at the start and is Float [5] now"),
    "dtype": (2, "groups(): the parameter w was Float [4] at the start and is Double [4] now"),
    "another": (2, "groups(): the parameter w is another tensor than at the start"),
    "double": (2, "groups(): the parameter w is Double [4], expected Float"),
    "twice": (2, "groups(): the parameter v is the same tensor as w: it must be there once"),
    "best": (2, 'info(): best.name is "valid_mse", expected a figure of the evaluation: valid_loss, train_loss'),
    "missing_figure": (1, "evaluation_lines() threw an exception: the evaluation has no figure valid_mse, only valid_loss"),
    "no_source": (2, "batches(): of the training split, there is neither a BatchSource nor an Error"),
    "no_steps": (2, "batches(): of the training split, epoch 0 has 0 batches, expected at least 1"),
    "no_samples": (2, "batches(): of the training split, batch 0 of epoch 0 has no samples, expected at least 1"),
    "no_valid_source": (2, "batches(): of the validation split, there is neither a BatchSource nor an Error"),
    "no_valid_steps": (2, "batches(): of the validation split, epoch 0 has 0 batches, expected at least 1"),
    "nan_weight": (3, "fetch() gave the weight nan, expected a finite one, not below 0"),
    "undefined_tensor": (3, "fetch() gave the tensor x undefined"),
    "missing_tensor": (1, "loss() threw an exception: the batch has no tensor y, only x"),
    "name": (2, "groups(): the parameter w of the start is called v now"),
    "unknown_group": (2, 'info(): the phase first freezes "ww", which is no group of groups(): expected some of "w"'),
    "all_frozen": (2, 'info(): the phase second freezes all groups that have parameters (of "w"): expected at least one '
                      'that is trained'),
}


def faulty_run(lockstep, faulty, folder, fault):
    return [lockstep, "run", "faulty", "--plugin", faulty, "--fault", fault, "--train_dir", folder, "--nproc", 1,
            "--max_steps", 6, "--num_epochs", 100, "--batch_size", 4, "--status_port", 0, "--max_restarts", 0]


@pytest.mark.parametrize("fault", ["none", "mean_beside_a_figure", "cancels_out"])
def test_what_is_no_fault(lockstep, faulty, tmp_path, fault):
    do(*faulty_run(lockstep, faulty, tmp_path / "run", fault))
    assert checkpoints(tmp_path / "run") == ["step-00000006"]


@pytest.mark.parametrize("fault, code, message", [
    ("no_memory_in_fetch", 13, "fetching a batch: out of memory: std::bad_alloc"),
    ("error_in_fetch", 3, "the disk has no batch"),
])
def test_a_fetch_without_memory_and_one_without_data(run, lockstep, faulty, tmp_path, fault, code, message):
    done = run(faulty_run(lockstep, faulty, tmp_path / "run", fault))
    assert message in done.stdout + done.stderr
    assert done.returncode == code, done.stdout + done.stderr


def test_an_exception_is_retried(run, lockstep, faulty, tmp_path):
    for fault in ("throws_in_fetch", "throws_in_make"):
        done = run([*faulty_run(lockstep, faulty, tmp_path / fault, fault), "--max_restarts", 1])
        assert (done.stdout + done.stderr).count(" threw an exception: no ") >= 2, done.stdout + done.stderr
        assert done.returncode == 1, done.stdout + done.stderr


def test_another_version_of_the_maths(run, lockstep, faulty, tmp_path):
    folder = tmp_path / "run"
    do(*faulty_run(lockstep, faulty, folder, "none"))
    newer = [*faulty_run(lockstep, faulty, folder, "version"), "--max_steps", 8]
    message = "(version 1 of faulty wrote it, this is version 2, whose maths differ); to continue from it give --resume "
    for more in ([], ["--inference_only"]):
        done = run([*newer, *more])
        assert done.returncode == 2 and message in done.stdout + done.stderr, done.stdout + done.stderr
    do(*newer, "--resume", folder / "step-00000006")
    assert "step-00000008" in checkpoints(folder)


def test_a_task_that_throws(run, lockstep, faulty, tmp_path):
    do(*faulty_run(lockstep, faulty, tmp_path / "run", "none"))
    done = run([lockstep, "faulty", "task", "--plugin", faulty, "--checkpoint", tmp_path / "run"])
    assert done.returncode == 1
    assert f"error: --plugin {faulty}: run_task() threw an exception: no task today" in done.stderr


def test_a_worker_by_itself_refuses_what_it_is_told(run, worker, faulty):
    done = run([worker, "faulty", "--plugin", "/nowhere/x.so"])
    assert done.returncode == 2
    assert "error: --plugin /nowhere/x.so: No such file or directory; expected a shared object" in done.stderr
    done = run([worker, "faulty", "--plugin", faulty, "--fault", "check_throws_a_number"])
    assert done.returncode == 2
    assert "error: the flags of --plugin threw something that is no std::exception" in done.stderr


@pytest.mark.parametrize("fault", FAULTS)
def test_what_a_plugin_must_not_do(run, lockstep, faulty, tmp_path, fault):
    code, message = FAULTS[fault]
    done = run(faulty_run(lockstep, faulty, tmp_path / "run", fault))
    said = (done.stdout + done.stderr).replace(str(faulty), "PLUGIN")
    assert "--plugin PLUGIN: " + message in said
    assert done.returncode == code, said


# Mistakes that the training loop finds, not the wrapper around the plugin. With two ranks, "used_by_one_rank" would
# otherwise let one rank wait for the other.
@pytest.mark.parametrize("fault, ranks, message", [
    ("unused", 1, "loss() gives no gradient to the parameter unused: every batch must use every parameter"),
    ("unused", 2, "loss() gives no gradient to the parameter unused: every batch must use every parameter"),
    ("unused_beside_a_figure", 1, "loss() gives no gradient to the parameter unused: every batch must use every parameter"),
    ("unused_beside_a_figure", 2, "loss() gives no gradient to the parameter unused: every batch must use every parameter"),
    ("used_by_one_rank", 2, "loss() gives no gradient to the parameter unused: every batch must use every parameter"),
    ("detached", 1, "loss() gives no gradient to the parameter w: every batch must use every parameter"),
    ("no_validation", 1, "batches(): of the validation split, an epoch has 0 samples"),
])
def test_what_the_loop_refuses(run, lockstep, faulty, tmp_path, fault, ranks, message):
    done = run([*faulty_run(lockstep, faulty, tmp_path / "run", fault), "--nproc", ranks])
    assert message in done.stdout + done.stderr
    assert done.returncode in (2, 3), done.stdout + done.stderr


def test_without_options(run, lockstep, faulty, tmp_path):
    done = run(faulty_run(lockstep, faulty, tmp_path / "run", "none"), FAULTY_WITHOUT_OPTIONS="1")
    assert done.returncode == 2
    assert "its flags read options of another type than set_defaults puts into config.options" in done.stderr


@pytest.mark.parametrize("variable, name, message", [
    ("FAULTY_FLAG", "lr", "there is a flag lr already: give this one another name"),
    ("FAULTY_FLAG", "epochs", "the flag --epochs is there twice, once as another name of --num_epochs"),
    ("FAULTY_FLAG", "config", "the flag --config: lockstep itself takes that name"),
    ("FAULTY_FLAG", "mount", "the flag --mount: lockstep itself takes that name"),
    ("FAULTY_TASK_FLAG", "device", "there is a flag device already: give this one another name"),
])
def test_a_flag_whose_name_is_taken(run, lockstep, worker, faulty, tmp_path, variable, name, message):
    for command in (faulty_run(lockstep, faulty, tmp_path, "none"), [lockstep, "workloads", "--plugin", faulty],
                    [lockstep, "run", "faulty", "--plugin", faulty, "--help"],
                    [lockstep, "faulty", "task", "--plugin", faulty, "--checkpoint", tmp_path],
                    [worker, "faulty", "--plugin", faulty]):
        done = run(command, **{variable: name})
        assert done.returncode == 2, done.stdout + done.stderr
        assert f"--plugin {faulty}: {message}" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_task_handles_signals_as_the_first_process_of_a_container_must(lockstep, faulty, tmp_path, number):
    do(*faulty_run(lockstep, faulty, tmp_path / "run", "none"))
    waiting = Running([lockstep, "faulty", "task", "--plugin", faulty, "--checkpoint", tmp_path / "run"], tmp_path,
                      FAULTY_TASK_WAITS="1")
    waiting.wait_for(lambda: "waiting" in waiting.output(), "start of the task")
    waiting.process.send_signal(number)
    assert waiting.process.wait(60) == 128 + number  # an exit code, not a death by the signal's default action


@pytest.mark.parametrize("words, flags", [([], "-O3 -DNDEBUG"), (["-DCMAKE_BUILD_TYPE=Debug"], "-g")])
def test_the_cmake_function_optimises_unless_told_otherwise(installed, tmp_path, words, flags):
    (tmp_path / "model.cc").write_text("")
    (tmp_path / "CMakeLists.txt").write_text((EXAMPLE / "CMakeLists.txt").read_text().replace("byte_lm", "model"))
    do("cmake", "-G", "Unix Makefiles", "-S", tmp_path, "-B", tmp_path / "build", f"-DCMAKE_PREFIX_PATH={installed}", *words)
    made = tmp_path / "build/CMakeFiles/model.dir"
    assert f"CXX_FLAGS = {flags} -fPIC" in (made / "flags.make").read_text()
    assert " -o model.so " in (made / "link.txt").read_text()


def test_without_the_cmake_target(run, installed, tmp_path):
    source = tmp_path / "model.cc"
    source.write_text('#include "runner/plugin/plugin.h"\nLOCKSTEP_PLUGIN(model)\n')
    include = installed / "include/lockstep"
    torch = include / "torch_headers"
    done = run(["g++", "-std=c++20", "-fsyntax-only", "-I", include, "-I", torch, "-I",
                torch / "torch/csrc/api/include", source])
    assert done.returncode != 0
    assert "link the CMake target Lockstep::plugin" in done.stderr


def test_a_device_fault_is_reported_and_ends_the_worker_before_any_destructor(run, lockstep, faulty, tmp_path):
    done = run(faulty_run(lockstep, faulty, tmp_path / "run", "device"))
    said = done.stdout + done.stderr
    assert re.search(r"ended with exit code 12 \(DeviceFault\).*: at step 1: CUDA error: an illegal memory access", said), said
    assert done.returncode == 12, said


def test_nodes_with_different_builds_are_refused(run, lockstep, byte_lm, tmp_path, free_port):
    other = tmp_path / "byte_lm.so"
    other.write_bytes(byte_lm.read_bytes() + b"\n")
    port = free_port()

    def words(plugin, node):
        return command(lockstep, plugin, tmp_path / f"run{node}", "--nproc", 1, "--nnodes", 2, "--node_rank", node,
                       "--coordinator", f"127.0.0.1:{port}")
    first = Running(words(byte_lm, 0), tmp_path)
    second = Running(words(other, 1), tmp_path)
    assert second.end() == 2, second.output()
    assert "the sha256 of the file of --plugin is " in second.output()
    assert "start all ranks with the same flags, data and version of lockstep" in second.output()
    first.signal(signal.SIGKILL)
    first.end()


def test_several_nodes_on_this_machine(lockstep, byte_lm, tmp_path, undisturbed):
    folder = tmp_path / "run"
    do(*command(lockstep, byte_lm, folder, "--nproc", 1, "--local_nodes", 2, steps=10))
    expected = losses(undisturbed)
    assert losses(folder) == {step: expected[step] for step in range(1, 11)}


def test_a_worker_by_itself(worker, byte_lm, tmp_path):
    done = do(worker, "byte_lm", "--plugin", byte_lm, "--text", TEXT, "--train_dir", tmp_path / "run", "--max_steps", 3,
              *SMALL)
    assert "done at step 3 of 3" in done
