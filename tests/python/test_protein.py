"""ProteinMPNN as a user trains it: it learns, its losses do not depend on the machines, what is prepared once stays
prepared, and what cannot be trained on is refused by name."""
import json
import math
import os
import re
import shlex
import shutil
import signal
import sys

import pytest

from jobs import WorkloadJob, read_metrics
from programs import ROOT, fetched
from runs import Running, equal_weights, losses, records, weights

sys.path.append(str(ROOT / "tests/dashboards"))

import boards  # noqa: E402

# A model that learns in seconds. Structures of many lengths: the batches are uneven.
SMALL_MODEL = ["--hidden_dim", "32", "--num_encoder_layers", "1", "--num_decoder_layers", "1", "--num_neighbors", "12",
               "--warmup_steps", "20", "--lr", "0.003", "--status_port", "0"]


@pytest.fixture(scope="session")
def structures(tmp_path_factory):
    """Real structures of at most 200 residues, in a folder of the test's own."""
    source, folder = fetched("get_structures"), tmp_path_factory.mktemp("structures")
    for name in ("1ubi.pdb", "1ejg.pdb", "1a8o.pdb.gz", "1as5.cif.gz", "2beg.pdb.gz", "7pbl.pdb"):
        shutil.copy(source / name, folder / name)
    return folder


def train(run, lockstep, data, folder, *flags, nproc=1):
    done = run([lockstep, "run", "protein", "--pdb_path", data, "--train_dir", folder, "--nproc", nproc, "--log_every", "1",
                "--batch_tokens", "500", *SMALL_MODEL, *flags])
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def evaluations(folder):
    return [record for record in records(folder) if "valid_perplexity" in record]


def test_resume_from_epoch_last_is_the_run_that_made_it(run, lockstep, tmp_path):
    data = "generated:30:70"
    train(run, lockstep, data, tmp_path / "first", "--num_epochs", "2")
    train(run, lockstep, data, tmp_path / "whole", "--num_epochs", "4")
    train(run, lockstep, data, tmp_path / "next", "--num_epochs", "4", "--resume", tmp_path / "first/epoch_last.pt")
    wanted, found = losses(tmp_path / "whole"), losses(tmp_path / "next")
    assert found == {step: loss for step, loss in wanted.items() if step > max(losses(tmp_path / "first"))} and len(found) > 4
    assert equal_weights(weights(tmp_path / "next"), weights(tmp_path / "whole"))


def test_it_learns_what_a_backbone_says_about_its_sequence(run, lockstep, tmp_path):
    # A sequence of a generated structure follows from its geometry: guessing gives a perplexity of about 20.
    train(run, lockstep, "generated:40:60", tmp_path / "run", "--num_epochs", "20", "--backbone_noise", "0", nproc=2)
    found = evaluations(tmp_path / "run")
    assert found[0]["valid_perplexity"] > 12, found[0]
    assert found[-1]["valid_perplexity"] < 0.7 * found[0]["valid_perplexity"], found[-1]
    assert found[-1]["valid_recovery"] > found[0]["valid_recovery"] + 0.08, found[-1]


FIVE_CHAINS = ("1ubi.pdb", "1ejg.pdb", "1a8o.pdb.gz", "3jqh.cif.gz", "1a7g.cif.gz")


@pytest.mark.long
def test_five_chains_are_learnt_by_heart(run, lockstep, tmp_path):
    """The published model, without noise and dropout: at least nine of ten amino acids of what it was trained on."""
    folder = tmp_path / "structures"
    folder.mkdir()
    for name in FIVE_CHAINS:
        shutil.copy(fetched("get_structures") / name, folder / name)
    done = run([lockstep, "run", "protein", "--variant", "mpnn", "--pdb_path", folder, "--train_dir", tmp_path / "run",
                "--val_split", "0", "--backbone_noise", "0", "--dropout", "0", "--loss_norm", "tokens", "--batch_tokens", "1000",
                "--lr", "0.001", "--lr_schedule", "constant", "--warmup_steps", "20", "--num_epochs", "300", "--eval_every", "50",
                "--status_port", "0"], timeout=3400)
    assert done.returncode == 0, done.stdout + done.stderr
    found = evaluations(tmp_path / "run")
    assert found[-1]["valid_recovery"] >= 0.9, found


@pytest.mark.long
def test_the_training_curve_is_the_public_packages(run, lockstep, tmp_path):
    """The same structures, first weights, batches, loss, optimizer and schedule, without noise and dropout. The orders of
    decoding are drawn by different generators, which moves a curve by a tenth: ours lies between two of theirs, or 5 %
    beside them."""
    import torch
    from safetensors.torch import load_file

    import protein_reference as reference
    steps, mean_of = 45, 15
    folder = tmp_path / "structures"
    folder.mkdir()
    for name in ("1ubi.pdb", "1ejg.pdb", "1a8o.pdb.gz"):
        shutil.copy(fetched("get_structures") / name, folder / name)
    line = [lockstep, "run", "protein", "--variant", "mpnn", "--pdb_path", folder, "--val_split", "0", "--backbone_noise", "0",
            "--dropout", "0", "--batch_tokens", "10000", "--warmup_steps", "20", "--lr", "0.002", "--log_every", "1", "--eval_every",
            "0", "--status_port", "0", "--num_epochs", "1000"]
    done = run([*line, "--train_dir", tmp_path / "first", "--max_steps", "1", "--lr", "1e-12"])
    assert done.returncode == 0, done.stdout + done.stderr
    done = run([*line, "--train_dir", tmp_path / "run", "--max_steps", steps], timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    ours = [record["loss_nll"] for record in records(tmp_path / "run") if "loss" in record]

    torch.set_num_threads(1)
    proteins = [reference.parse(path) for path in reference.pdb_files(folder, tmp_path)]
    batch = reference.padded([reference.featurize([protein])[0] for protein in proteins])
    mask = batch["mask"] * batch["chain_M"]
    theirs = []
    for seed in (1, 2):
        model = reference.public.ProteinMPNN(num_letters=21, node_features=128, edge_features=128, hidden_dim=128, k_neighbors=48,
                                             augment_eps=0.0, dropout=0.0)
        model.load_state_dict(load_file(next((tmp_path / "first").glob("step-*")) / "model.safetensors"))
        optimizer = torch.optim.Adam(model.parameters(), betas=(0.9, 0.98), eps=1e-9)
        theirs.append([])
        torch.manual_seed(seed)
        for step in range(1, steps + 1):
            for group in optimizer.param_groups:
                group["lr"] = 0.002 * min(step / 20, (20 / step) ** 0.5)
            log_probs = model(*reference.arguments(batch), torch.randn(batch["chain_M"].shape))
            smoothed, _ = reference.public.loss_smoothed(batch["S"], log_probs, mask)
            nll, _ = reference.public.loss_nll(batch["S"], log_probs, mask)
            optimizer.zero_grad()
            ((smoothed * mask).sum() / 2000).backward()
            optimizer.step()
            theirs[-1].append((nll * mask).sum().item() / mask.sum().item())
    assert len(ours) == steps
    assert ours[0] == pytest.approx(theirs[0][0], rel=0.02)
    for first in range(0, steps, mean_of):
        mean, *of_theirs = [sum(curve[first:first + mean_of]) / mean_of for curve in (ours, *theirs)]
        assert 0.95 * min(of_theirs) < mean < 1.05 * max(of_theirs), f"steps {first} to {first + mean_of}"
    assert ours[-1] < 0.95 * ours[0]


def test_the_public_package_loads_what_was_trained_here(run, lockstep, structures, tmp_path):
    """epoch_last.pt has the public script's form: its model takes it, and finds the same scores as ours."""
    import torch

    import protein_reference as reference
    done = run([lockstep, "run", "protein", "--variant", "mpnn", "--pdb_path", structures / "1ubi.pdb", "--train_dir",
                tmp_path / "run", "--val_split", "0", "--num_neighbors", "30", "--backbone_noise", "0.1", "--max_steps", "3",
                "--num_epochs", "2", "--status_port", "0"])
    assert done.returncode == 0, done.stdout + done.stderr
    saved = torch.load(tmp_path / "run/epoch_last.pt", weights_only=True)
    assert (saved["num_edges"], saved["noise_level"], saved["epoch"]) == (30, 0.1, 2)
    assert saved["optimizer_state_dict"]["param_groups"][0]["betas"] == [0.9, 0.98]
    model = reference.public.ProteinMPNN(num_letters=21, node_features=128, edge_features=128, hidden_dim=128,
                                         k_neighbors=saved["num_edges"], augment_eps=0.0)
    model.load_state_dict(saved["model_state_dict"])
    batch, _ = reference.featurize([reference.parse(structures / "1ubi.pdb")])
    with torch.no_grad():
        scores = [reference.public._scores(batch["S"], model.eval()(*reference.arguments(batch),
                                                                    reference.random_order(batch, seed)[0]),
                                           batch["mask"]).item() for seed in range(8)]
    # The file says how many neighbours: no flag does.
    done = run([lockstep, "protein", "score", "--checkpoint", tmp_path / "run/epoch_last.pt", "--pdb_path",
                structures / "1ubi.pdb", "--num_orders", "8"])
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["score"] == pytest.approx(sum(scores) / len(scores), abs=0.03)


def test_a_folder_of_real_structures_is_prepared_once(run, lockstep, structures, tmp_path):
    folder = tmp_path / "data"
    shutil.copytree(structures, folder, ignore=shutil.ignore_patterns(".lockstep"))
    said = train(run, lockstep, folder, tmp_path / "run", "--max_steps", "2", "--val_split", "0.3")
    assert re.search(r"structures +6 from ", said), said
    assert re.search(r"found +6 structure files \(", said), said
    cache = list((folder / ".lockstep").glob("*.cache"))
    assert len(cache) == 1
    written = cache[0].stat().st_mtime_ns
    train(run, lockstep, folder, tmp_path / "again", "--max_steps", "2", "--val_split", "0.3")
    assert cache[0].stat().st_mtime_ns == written
    assert losses(tmp_path / "again") == losses(tmp_path / "run")
    assert all(math.isfinite(loss) for loss in losses(tmp_path / "run").values())


def write_training_set(folder, members, validated=()):
    """ProteinMPNN's form: an entry of one chain of 20 residues for each member of each cluster. members: by cluster, how many;
    validated: clusters of valid_clusters.txt."""
    import torch
    draw = torch.Generator().manual_seed(1)
    lines = ["CHAINID,DEPOSITION,RESOLUTION,HASH,CLUSTER,SEQUENCE"]
    (folder / "pdb").mkdir(parents=True)
    for cluster in [cluster for cluster, count in members.items() for _ in range(count)]:
        entry = f"{len(lines)}ab{cluster % 10}"
        sequence = "".join("ACDEFGHIKLMNPQRSTVWY"[i] for i in torch.randperm(20, generator=draw))
        lines.append(f"{entry}_A,2010-01-01,2.1,{len(lines):06},{cluster},{sequence}")
        place = folder / "pdb" / entry[1:3]
        place.mkdir(exist_ok=True)
        steps = torch.nn.functional.normalize(torch.randn(20, 1, 3, generator=draw), dim=-1) * 3.8
        torch.save({"seq": sequence, "xyz": steps.cumsum(0) + torch.randn(20, 14, 3, generator=draw)}, place / f"{entry}_A.pt")
        torch.save({"chains": ["A"], "tm": torch.ones(1, 1, 3), "asmb_ids": ["1"], "asmb_chains": ["A"],
                    "asmb_xform0": torch.eye(4)[None]}, place / f"{entry}.pt")
    (folder / "list.csv").write_text("\n".join(lines) + "\n")
    if validated:
        (folder / "valid_clusters.txt").write_text("".join(f"{cluster}\n" for cluster in validated))
    return folder


@pytest.mark.parametrize("flags", [[], ["--use_predefined_split"]], ids=["lists", "lists that are asked for"])
def test_an_epoch_of_the_training_set_takes_one_member_of_each_cluster(run, lockstep, tmp_path, flags):
    # Members have 20 residues, and so has a batch: each is a step of its own, in which the second rank has nothing to do.
    data = write_training_set(tmp_path / "set", {11: 2, 12: 3, 13: 2}, validated=[13])
    said = train(run, lockstep, data, tmp_path / "run", "--batch_tokens", "20", "--num_epochs", "1", *flags, nproc=2)
    assert re.search(r"found +ProteinMPNN's training set: 7 entries .*\(5 to train on, 2 to validate on, 0 to test on\)",
                     " ".join(said.split())), said
    assert re.search(r"trained on +5 of 100 residues", said) and re.search(r"validated on +2\b", said), said
    steps = [record for record in records(tmp_path / "run") if "loss" in record]
    assert [record["samples"] for record in steps] == [1, 1], "two clusters train"
    assert all(math.isfinite(record["loss"]) for record in steps)
    assert evaluations(tmp_path / "run")[-1]["valid_perplexity"] > 1
    assert (tmp_path / "run/held_out.txt").read_text().split() == ["6ab3-1", "7ab3-1"]


def test_a_training_set_without_a_list_of_who_validates_is_divided_by_clusters(run, lockstep, tmp_path):
    data = write_training_set(tmp_path / "set", {11: 2, 12: 2, 13: 2, 14: 2})
    said = train(run, lockstep, data, tmp_path / "run", "--batch_tokens", "20", "--num_epochs", "1", "--val_split", "0.25")
    assert re.search(r"trained on +6 of 120 residues", said) and re.search(r"validated on +2\b", said), said
    held_out = (tmp_path / "run/held_out.txt").read_text().split()
    assert len(held_out) == 2 and len({name[3] for name in held_out}) == 1, "the members of one cluster"


def test_the_cache_goes_elsewhere_where_the_data_cannot_be_written(run, lockstep, structures, tmp_path):
    target = tmp_path / "cache"
    folder = tmp_path / "data"
    shutil.copytree(structures, folder, ignore=shutil.ignore_patterns(".lockstep"))
    (folder / ".lockstep").write_text("in the way")  # root may write everywhere: a file where the folder would be
    done = run([lockstep, "run", "protein", "--pdb_path", folder, "--train_dir", tmp_path / "run", *SMALL_MODEL])
    assert done.returncode == 3, done.stdout + done.stderr
    assert ".lockstep" in done.stderr and "another folder with --cache_dir FOLDER --variant mpnn" in done.stderr, done.stderr
    train(run, lockstep, folder, tmp_path / "run", "--max_steps", "1", "--variant", "mpnn", "--cache_dir", target)
    assert list(target.glob("*.cache"))


@pytest.mark.parametrize("flags, said", [
    ([], "--pdb_path is required"),
    (["--pdb_path", "nowhere"], "nowhere"),
    (["--pdb_path", "generated", "--batch_size", "8"], "--batch_tokens"),
    (["--pdb_path", "generated", "--max_protein_length", "3"], "--max_protein_length 3"),
    (["--pdb_path", "generated", "--variant", "other"], "--variant"),
    (["--pdb_path", "generated", "--batch_scope", "per_device"], "--batch_tokens"),
], ids=["nothing", "no folder", "batch size", "all too long", "variant", "batch of each device"])
def test_what_cannot_be_trained_on_is_refused_by_name(run, lockstep, tmp_path, flags, said):
    done = run([lockstep, "run", "protein", "--train_dir", tmp_path / "run", "--status_port", "0", *flags])
    assert done.returncode in (2, 3) and said in done.stderr, (done.returncode, done.stderr)


# Of the guide's line for a folder of PDB files.
GUIDE = ["--pdb_path", "data/pdbs", "--epochs", "50", "--batch_size", "8", "--learning_rate", "1e-4", "--hidden_dim", "256",
         "--num_encoder_layers", "3", "--num_decoder_layers", "3", "--mask_ratio", "0.15", "--save_dir", "checkpoints",
         "--max_steps", "2", "--log_every", "1", "--status_port", "0", "--threads", "1"]


def test_the_documents_torchrun_line_on_a_folder_of_pdb_files_trains_as_ours_does(run, lockstep, worker, structures, tmp_path,
                                                                                 free_port):
    folder = tmp_path / "data/pdbs"
    folder.mkdir(parents=True)
    for name in ("1ubi.pdb", "1ejg.pdb", "1a8o.pdb.gz"):
        shutil.copy(structures / name, folder)
    (line,) = re.findall(r"`(torchrun --no-python [^`]*)`", (ROOT / "docs/workloads/protein.md").read_text(encoding="utf-8"))
    assert "--nproc_per_node=8 " in line and line.endswith(" FLAGS"), line
    words = shlex.split(line.replace("--nproc_per_node=8", f"--nproc_per_node=2 --master_port={free_port()}"))[:-1]
    done = run([*words, *GUIDE], cwd=tmp_path,
               PATH=f"{worker.parent}:{os.path.dirname(sys.executable)}:{os.environ['PATH']}")
    assert done.returncode == 0, done.stdout + done.stderr
    ours = run([lockstep, "run", "protein", *GUIDE, "--nproc", "2", "--save_dir", "ours"], cwd=tmp_path)
    assert ours.returncode == 0, ours.stdout + ours.stderr
    assert re.search(r"found +3 structure files \(", ours.stdout), ours.stdout
    assert sorted(losses(tmp_path / "ours")) == [1, 2]
    assert losses(tmp_path / "checkpoints") == losses(tmp_path / "ours")


def test_the_dashboards_panels_of_proteins_have_their_series(lockstep, tmp_path):
    """tests/dashboards records a run of SASRec, which has no such figures. What is left out here of a query are the labels that
    the scrape adds, whose values are variables of the dashboard."""
    wanted = [(panel["title"], one["name"], re.findall(r'(\w+)=~?"([^$"]+)"', one["matchers"]))
              for panel, target in boards.queries(boards.load("training-run")) if panel["title"] in boards.PROTEIN_PANELS
              for one in boards.selectors(target["expr"])]
    assert {title for title, _, _ in wanted} == boards.PROTEIN_PANELS and all(matchers for _, _, matchers in wanted), wanted
    job = WorkloadJob(lockstep, "protein", tmp_path / "run", tmp_path, "--pdb_path", "generated:30:50", "--batch_tokens", "500",
                      "--eval_every", "1", "--max_steps", 1_000_000, "--num_epochs", 1_000_000, *SMALL_MODEL[:-2], nodes=1)
    found = {}

    def are_there():
        text = read_metrics(job.port)
        for title, name, matchers in wanted:
            for labels, value in re.findall(rf"^{name}\{{([^}}]*)\}} (\S+)$", text, re.M):
                label = dict(re.findall(r'(\w+)="([^"]*)"', labels))
                if all(re.fullmatch(pattern, label.get(key, "")) for key, pattern in matchers):
                    found[title] = float(value)
        return found.keys() == boards.PROTEIN_PANELS
    job.wait_for_progress(1)
    job.wait_for(are_there, "figures of an evaluation")
    assert found["Perplexity"] > 1 and 0 <= found["Recovery"] <= 1, found
    job.signal(signal.SIGTERM)
    assert job.end() == 143, job.output()


# Its only structure is 1.483 times as long as asked for: 10,000 residues.
TEN_THOUSAND = "generated:1:6743"


@pytest.mark.long
def test_ten_thousand_residues_are_scored(run, lockstep):
    import protein_reference as reference
    done = run([lockstep, "protein", "score", "--checkpoint", reference.weights_file(), "--pdb_path", TEN_THOUSAND, "--device",
                "cpu"], timeout=1200)
    assert done.returncode == 0, done.stderr
    line = json.loads(done.stdout)
    assert len(line["sequence"]) == 10_000 and math.isfinite(line["score"])


@pytest.mark.long
@pytest.mark.parametrize("variant, flags", [
    ("mpnn", SMALL_MODEL),
    ("mdm", ["--hidden_dim", "32", "--num_heads", "4", "--num_encoder_layers", "1", "--num_decoder_layers", "1", "--status_port",
             "0"])], ids=["mpnn", "mdm"])
def test_a_step_on_ten_thousand_residues(run, lockstep, tmp_path, variant, flags):
    done = run([lockstep, "run", "protein", "--variant", variant, "--pdb_path", TEN_THOUSAND, "--train_dir", tmp_path / "run",
                "--max_steps", "1", "--log_every", "1", *flags], timeout=1800)
    assert done.returncode == 0, done.stdout + done.stderr
    assert variant == "mdm" or re.search(r"trained on +1 of 10000 residues", done.stdout), done.stdout
    assert list(losses(tmp_path / "run")) == [1] and math.isfinite(losses(tmp_path / "run")[1])


@pytest.mark.long
def test_a_preparation_that_outlasts_the_deadlines_does_not_end_the_run_and_a_killed_one_goes_on(run, lockstep, structures,
                                                                                              tmp_path):
    """Both deadlines of the start are 2 s here, and reading the copies takes several. The operator's own is in its golden
    cases."""
    folder = tmp_path / "data"
    folder.mkdir()
    for copy in range(300):
        shutil.copy(structures / "7pbl.pdb", folder / f"{copy}.pdb")
    flags = ["run", "protein", "--pdb_path", folder, "--train_dir", tmp_path / "run", "--nproc", "2", "--max_steps", "1",
             "--eval_every", "0", "--batch_tokens", "500", "--num_examples_per_epoch", "2", "--val_split", "0.01",
             "--rendezvous_timeout_seconds", "2", *SMALL_MODEL]
    running = Running([lockstep, *flags], tmp_path)
    parts = folder / ".lockstep"
    running.wait_for(lambda: len(list(parts.glob("*.parts/*"))) >= 2, "two finished parts")
    kept = {path.name for path in parts.glob("*.parts/*") if path.suffix != ".tmp"}
    running.signal(signal.SIGKILL)
    running.end()
    done = run([lockstep, *flags])
    assert done.returncode == 0, done.stdout + done.stderr
    assert kept, "nothing was kept"
    assert re.search(r"structures +300 from ", done.stdout), done.stdout


def test_a_training_set_without_a_list_of_who_validates_is_no_predefined_split(run, lockstep, tmp_path):
    data = write_training_set(tmp_path / "set", {11: 2, 12: 1})
    done = run([lockstep, "run", "protein", "--pdb_path", data, "--train_dir", tmp_path / "run", "--use_predefined_split",
                *SMALL_MODEL])
    assert done.returncode == 3 and "--use_predefined_split" in done.stderr, (done.returncode, done.stderr)
    said = " ".join(done.stderr.split())
    assert "valid_clusters.txt is missing" in said and "--val_split draws clusters" in said, said


def test_broken_files_are_named_and_left_out(run, lockstep, structures, tmp_path):
    folder = tmp_path / "data"
    shutil.copytree(structures, folder, ignore=shutil.ignore_patterns(".lockstep"))
    (folder / "broken.pdb").write_text("ATOM      1  N   ALA A   1      nonsense\n")
    (folder / "water.pdb").write_text("HETATM    1  O   HOH A   1       1.000   2.000   3.000  1.00  0.00           O\nEND\n")
    said = train(run, lockstep, folder, tmp_path / "run", "--max_steps", "1")
    assert "6 from" in said and "2 files skipped" in said, said
    assert re.search(r"skipped +broken.pdb: ", said) and re.search(r"skipped +water.pdb: ", said), said
