"""`lockstep run gpt2rec`: beside a twin in PyTorch, over world sizes, through phases, resumed and recovered, by the guide's
own command lines, and on input that is bad."""
import json
import pathlib
import re
import shutil
import subprocess

import pytest
import torch

import gpt2rec_twin as twin
from gpt2rec_runs import OCCUPATIONS, QUICK, RATIO, SEED, SMALL, made_twin, recommend, texts_of, train, write_1m
from programs import bin_folder, clean_environment, program, text
from runs import Running, checkpoints, equal_weights, losses, records, weights


def figures(folder):
    """The last evaluation's."""
    return [record for record in records(folder) if "valid_ndcg@10" in json.dumps(record)][-1]


def figure(record, name):
    return record["metrics"][name] if "metrics" in record else record[name]


# --- beside the twin


@pytest.mark.parametrize("flags", [["--use_cache", "true"], ["--use_cache", "false"], ["--use_attention", "false"]],
                         ids=["cached", "dynamic", "without attention"])
def test_a_step_and_both_evaluations_agree_with_the_twin(run, lockstep, tmp_path, flags):
    pairs = write_1m(tmp_path / "ml-1m")
    # A step at rate 0: the weights are the first ones, and Adam's first moment is a tenth of the gradient.
    train(run, lockstep, tmp_path / "run", *flags, "--gpt2_config", "2x64", "--batch_scope", "total", "--batch_size", "1000",
          "--max_steps", "1", "--lr", "0", "--lr_schedule", "constant", "--dropout", "0", "--lora_dropout", "0",
          "--clip_grad_norm", "0", data=tmp_path / "ml-1m")
    state = torch.load(tmp_path / "run/model.pth", weights_only=True)
    model = made_twin(state, attention="--use_attention" not in flags)

    train_pairs, valid, test = twin.split(pairs, RATIO, SEED)
    negatives = torch.tensor(twin.static_negatives(train_pairs, SEED))
    users, films = torch.tensor(train_pairs).T
    user_texts, film_texts = (model.encode(texts, lambda line: list(line.encode()), 256) for texts in texts_of(tmp_path / "ml-1m"))
    of_users = model.side("user", users, user_texts[users])
    loss = twin.bpr(*(model.score(of_users, model.side("item", ids, film_texts[ids])) for ids in (films, negatives)))
    loss.backward()
    assert losses(tmp_path / "run")[1] == pytest.approx(loss.item(), abs=1e-5)
    assert loss.item() == pytest.approx(0.6931, abs=2e-3)

    moments = weights_of_optimizer(tmp_path / "run")
    named = {name.removeprefix("gpt2.base_model.model.transformer.").replace(".default", ""): parameter
             for name, parameter in model.named_parameters()}
    compared = 0
    for name, moment in moments.items():
        expected = named[name].grad
        scale = max(expected.abs().max().item(), 1e-6)
        torch.testing.assert_close(moment / 0.1 / scale, expected / scale, rtol=2e-3, atol=2e-3, msg=lambda m, n=name: f"{n}: {m}")
        compared += 1
    assert compared == len(moments) > 10
    assert any("lora_B" in name for name in moments) == ("false" in flags and "--use_cache" in flags)

    with torch.no_grad():
        trained = films.unique()
        is_new = torch.ones(len(film_texts), dtype=bool).index_fill(0, trained, False)
        model.item_emb.weight[is_new] = model.item_emb.weight[trained].mean(0)
        everybody = model.side("user", torch.arange(len(user_texts)), user_texts)
        everything = model.side("item", torch.arange(len(film_texts)), film_texts)
        scores = model.score(everybody[:, None].expand(-1, len(everything), -1), everything[None].expand(len(everybody), -1, -1))
    wanted = twin.evaluate(scores.numpy(), train_pairs, valid, test)
    found = figures(tmp_path / "run")
    for name, value in wanted.items():
        # Scores of the first weights are near each other: a swap of two that round differently is no mistake.
        assert figure(found, name) == pytest.approx(value, abs=0.02), name
    results = json.loads((tmp_path / "run/test_results_standard.json").read_text())
    assert results["ndcg@10"] == figure(found, "test_ndcg@10")
    assert {"recall@20", "precision@50", "epoch"} <= results.keys()


def weights_of_optimizer(folder):
    from safetensors.torch import load_file
    last = pathlib.Path(folder) / checkpoints(folder)[-1]
    found = load_file(last / "optimizer.safetensors")
    return {name.removeprefix("exp_avg."): tensor for name, tensor in found.items() if name.startswith("exp_avg.")}


# --- over world sizes, resumed, recovered

# Adapters that are trained learn so fast that their dropout is seen in the loss.
FAST_ADAPTERS = ["--gpt2_lr_factor", "5", "--lr_schedule", "constant"]
MODES = {"cached": ["--max_steps", "50"],
         "dynamic": ["--use_cache", "false", "--max_steps", "4", "--lr", "0.01", *FAST_ADAPTERS],
         "two phases": ["--phase1_epochs", "1", "--phase2_epochs", "1", "--phase1_lr", "1e-3", "--phase2_lr", "0.01",
                        *FAST_ADAPTERS]}


@pytest.mark.parametrize("mode", MODES)
def test_every_steps_loss_is_the_same_for_every_world_size_with_dropout_on(run, lockstep, small_1m, tmp_path, mode):
    found = {}
    for ranks in (1, 2, 3, 4):
        folder = tmp_path / f"w{ranks}"
        train(run, lockstep, folder, *SMALL, *MODES[mode], "--nproc", ranks, "--batch_size", "101", data=small_1m)
        found[ranks] = losses(folder), figures(folder)
    assert len(found[1][0]) >= 4
    for ranks in (2, 3, 4):
        assert found[ranks][0] == pytest.approx(found[1][0], rel=1e-5)
    if mode != "cached":
        train(run, lockstep, tmp_path / "none", *SMALL, *MODES[mode], "--lora_dropout", "0", "--batch_size", "101", data=small_1m)
        assert losses(tmp_path / "none") != pytest.approx(found[1][0], rel=1e-4), "the adapters' dropout does nothing"
    for ranks in (2, 3, 4):
        for name in ("valid_ndcg@10", "test_ndcg@10", "test_recall@50"):
            assert figure(found[ranks][1], name) == pytest.approx(figure(found[1][1], name), abs=0.02)


def test_the_adapters_gradients_are_the_same_for_every_world_size_with_dropout_on(run, lockstep, small_1m, tmp_path):
    """After one step Adam's first moment is a tenth of the gradient. That of lora_A is 0, because lora_B is."""
    found = {}
    for ranks in (1, 2, 3):
        train(run, lockstep, tmp_path / f"w{ranks}", *SMALL, "--use_cache", "false", "--max_steps", "1", "--lora_dropout", "0.5",
              "--clip_grad_norm", "0", "--nproc", ranks, "--batch_size", "101", data=small_1m)
        found[ranks] = weights_of_optimizer(tmp_path / f"w{ranks}")
    train(run, lockstep, tmp_path / "none", *SMALL, "--use_cache", "false", "--max_steps", "1", "--lora_dropout", "0",
          "--clip_grad_norm", "0", "--batch_size", "101", data=small_1m)
    without = weights_of_optimizer(tmp_path / "none")
    adapters = [name for name in found[1] if "lora_B" in name]
    assert len(adapters) == 6
    for name in found[1]:
        scale = found[1][name].abs().max()
        for ranks in (2, 3):
            assert (found[ranks][name] - found[1][name]).abs().max() <= 1e-4 * scale, name
    for name in adapters:
        scale = found[1][name].abs().max()
        assert scale > 0 and (without[name] - found[1][name]).abs().max() > 0.1 * scale, "the adapters' dropout does nothing"


def test_a_run_goes_on_through_the_change_of_phase_as_if_it_had_not_stopped(run, lockstep, small_1m, tmp_path):
    flags = [*SMALL, *MODES["two phases"], "--batch_size", "101"]
    train(run, lockstep, tmp_path / "whole", *flags, data=small_1m)
    whole = losses(tmp_path / "whole")
    for stop in (2, len(whole) // 2, len(whole) // 2 + 1):  # in phase 1, at its end, in phase 2
        folder = tmp_path / f"stopped{stop}"
        train(run, lockstep, folder, *flags, "--max_steps", stop, data=small_1m)
        train(run, lockstep, folder, *flags, data=small_1m)
        assert losses(folder) == whole, stop
        assert equal_weights(weights(folder), weights(tmp_path / "whole"))


@pytest.mark.long
def test_a_killed_worker_costs_nothing_in_either_phase(lockstep, run, tmp_path):
    flags = [*SMALL, "--phase1_epochs", "2", "--phase2_epochs", "1", "--batch_size", "600", "--nproc", "2",
             "--eval_every", "0"]
    train(run, lockstep, tmp_path / "undisturbed", *flags)
    wanted = losses(tmp_path / "undisturbed")
    running = Running([lockstep, "run", "gpt2rec", "--data_path", "generated", "--train_dir", tmp_path / "hurt", *QUICK, *flags],
                      tmp_path)
    of_phase1 = 2 * len(wanted) // 3
    for step in (2, of_phase1 + 1):
        running.wait_for_step(tmp_path / "hurt", step)
        running.kill_worker(-1)
        running.wait_for(lambda count=running.output().count("going on at step"):
                         running.output().count("going on at step") > count, "going on")
    assert running.end() == 0, running.output()
    assert losses(tmp_path / "hurt") == wanted
    assert equal_weights(weights(tmp_path / "hurt"), weights(tmp_path / "undisturbed"))


def test_training_starts_from_a_model_file_of_ours_or_the_guides(run, lockstep, tmp_path):
    train(run, lockstep, tmp_path / "first", *SMALL, "--use_cache", "false", "--max_steps", "4")
    state = torch.load(tmp_path / "first/model.pth", weights_only=True)
    torch.save({f"module.{name}": tensor for name, tensor in state.items()}, tmp_path / "wrapped.pth")
    wanted = figures(tmp_path / "first")
    for i, weights in enumerate((tmp_path / "first/model.pth", tmp_path / "wrapped.pth")):
        folder = tmp_path / f"second{i}"
        train(run, lockstep, folder, *SMALL, "--use_cache", "false", "--state_dict_path", weights, "--lr", "0", "--max_steps", "1")
        for name in ("valid_ndcg@10", "test_ndcg@10", "test_cold_ndcg@10"):
            assert figure(figures(folder), name) == figure(wanted, name), name

    refusals = {("--use_cache", "true"): "lora_B.default.weight was trained, and this run encodes its texts once, without adapters",
                ("--use_cache", "false", "--gpt2_config", "2x64"): "differs from the GPT-2 of this run"}
    for flags, words in refusals.items():
        done = run([lockstep, "run", "gpt2rec", "--data_path", "generated", "--train_dir", tmp_path / "refused", *QUICK, *SMALL,
                    *flags, "--state_dict_path", tmp_path / "wrapped.pth"])
        said = " ".join(text(done).split())
        assert done.returncode == 2 and words in said and f"--state_dict_path {tmp_path / 'wrapped.pth'}: " in said, said


def test_a_model_file_of_a_resumed_cached_run_has_adapters_that_can_be_trained(run, lockstep, tmp_path):
    """The adapters, which no phase trains, are in no checkpoint. With A = B = 0 no gradient would ever reach them."""
    flags = [*SMALL, "--batch_size", "3000"]
    for epochs in (1, 3):
        train(run, lockstep, tmp_path / "run", *flags, "--num_epochs", epochs)
        assert "epoch" in (tmp_path / "run/test_results_standard.json").read_text()
        state = torch.load(tmp_path / "run/model.pth", weights_only=True)
        (tmp_path / "run/model.pth").unlink()
        assert all(tensor.abs().max() > 0.01 for name, tensor in state.items() if "lora_A" in name), epochs


def test_a_run_goes_on_with_its_own_ratings_alone(run, lockstep, tmp_path):
    """Other ratings would be split otherwise, and the run be tested on ratings that it was trained on."""
    data = tmp_path / "data"
    write_1m(data)
    train(run, lockstep, tmp_path / "run", *SMALL, "--num_epochs", "1", data=data)
    ratings = (data / "ratings.dat").read_text()
    words = "was trained with another version of the ratings (sha256"
    for changed in ("1::2::5::1\n" + ratings, "".join(reversed(ratings.splitlines(keepends=True)))):
        (data / "ratings.dat").write_text(changed)
        done = run([lockstep, "run", "gpt2rec", "--data_path", data, "--train_dir", tmp_path / "run", *QUICK, *SMALL,
                    "--num_epochs", "2"])
        assert done.returncode == 2 and words in " ".join(text(done).split()), text(done)
        assert words in " ".join(recommend(run, lockstep, tmp_path / "run", code=2).split())
    (data / "ratings.dat").write_text(ratings)
    train(run, lockstep, tmp_path / "run", *SMALL, "--num_epochs", "2", data=data)


def test_nothing_of_the_frozen_gpt2_is_in_a_checkpoint_and_peft_opens_its_adapters(run, lockstep, small_1m, tmp_path):
    train(run, lockstep, tmp_path / "run", "--use_cache", "false", "--gpt2_config", "2x64", "--max_steps", "1", data=small_1m)
    names = set(weights(tmp_path / "run"))
    assert any("lora_A" in name for name in names)
    assert not any("wte" in name or name.endswith("c_fc.weight") for name in names)
    # What a checkpoint holds, and a rank that joins is sent, is what is trained.
    done = train(run, lockstep, tmp_path / "run2", "--use_cache", "false", "--gpt2_config", "2x64", "--max_steps", "1", data=small_1m)
    heads, lora = map(int, re.search(r"parameters +(\d+) beside GPT-2, (\d+) in LoRA", text(done)).groups())
    assert sum(tensor.numel() for tensor in weights(tmp_path / "run").values()) == heads + lora
    assert (tmp_path / "run" / checkpoints(tmp_path / "run")[-1] / "model.safetensors").stat().st_size < 4 * (heads + lora) + 16384
    state = json.loads((tmp_path / "run" / checkpoints(tmp_path / "run")[-1] / "state.json").read_text())
    assert re.search(r'"GPT-2":\s*"[0-9a-f]{64}"', json.dumps(state))
    from peft import PeftModel
    from transformers import GPT2Config, GPT2Model
    base = GPT2Model(GPT2Config(n_layer=2, n_embd=64, n_head=1, vocab_size=257, n_positions=1024))
    opened = PeftModel.from_pretrained(base, tmp_path / "run/lora").state_dict()
    saved = torch.load(tmp_path / "run/model.pth", weights_only=True)
    adapters = [name for name in opened if "lora_" in name]
    assert len(adapters) == 12
    for name in adapters:
        assert opened[name].equal(saved["gpt2." + name.replace("model.h.", "model.transformer.h.")]), name


# --- the guide's lines


@pytest.mark.parametrize("flags", [
    ["--split_ratio", "0.8,0.1,0.1", "--embed_dim", "64", "--batch_size", "2048", "--epochs", "50", "--lr", "1e-3",
     "--use_cache", "true", "--save_model", "true", "--model_path", "model.pth", "--device", "cuda"],
    ["--epochs", "50", "--lr", "0.002", "--batch_size", "1024", "--use_cache", "false", "--use_multi_gpu", "false"],
    ["--phase1_epochs", "15", "--phase2_epochs", "30", "--nproc", "2"]], ids=["example", "dynamic", "two phases"])
def test_the_guides_command_lines_train(run, lockstep, small_1m, tmp_path, flags):
    done = train(run, lockstep, tmp_path / "run", *flags, "--max_steps", "2", data=small_1m)
    assert re.search(r"Epoch \d+: valid \(NDCG@10: 0\.\d{4}, HR@10: 0\.\d{4}\), test \(Recall@10", text(done)), text(done)
    assert (tmp_path / "run/model.pth").exists()
    args = dict(line.split(",", 1) for line in (tmp_path / "run/args.txt").read_text().splitlines())
    assert args["batch_scope"] == "per_device" and args["max_skipped_steps"] == "0"
    if "--device" in flags:
        assert "--device cuda means auto here" in text(done)
        assert torch.cuda.is_available() or "no GPU found, training on the CPU" in text(done)


def test_a_loss_that_is_not_finite_ends_the_run_as_the_guide_does(run, lockstep, small_1m, tmp_path):
    """At a rate that sends the weights beyond all numbers: with what to do, and no model of such weights."""
    done = run([lockstep, "run", "gpt2rec", "--data_path", small_1m, "--train_dir", tmp_path / "run", *QUICK, *SMALL, "--nproc", "2",
                "--batch_size", "20", "--epochs", "50", "--lr", "1e6", "--lr_schedule", "constant", "--clip_grad_norm", "0"])
    assert done.returncode == 5, text(done)
    assert re.search(r"the gradient of step \d was not finite \(--max_skipped_steps 0\); lower --lr", text(done))
    assert text(done).count("initialised") == 1, "nobody tried it again"
    assert not (tmp_path / "run/model.pth").exists()


def test_movielens_100k_has_its_published_counts(run, lockstep, ml100k, tmp_path):
    done = train(run, lockstep, tmp_path / "run", "--max_steps", "1", *SMALL, data=ml100k)
    assert "80000 train" in text(done), text(done)
    assert "ids up to 943" in text(done) and "ids up to 1682" in text(done)
    # By its own form, made here of RecBole's: the same texts, so the same first loss.
    own = tmp_path / "own"
    own.mkdir()
    rows = [line.split("\t") for line in ml100k.read_text().splitlines()[1:]]
    (own / "u.data").write_text("".join("\t".join(row) + "\n" for row in rows))
    people = [line.split("\t") for line in ml100k.with_suffix(".user").read_text().splitlines()[1:]]
    (own / "u.user").write_text("".join("|".join(row) + "\n" for row in people))
    order = ["unknown", "Action", "Adventure", "Animation", "Children's", "Comedy", "Crime", "Documentary", "Drama", "Fantasy",
             "Film-Noir", "Horror", "Musical", "Mystery", "Romance", "Sci-Fi", "Thriller", "War", "Western"]
    lines = []
    for film, title, year, genres in (line.split("\t") for line in ml100k.with_suffix(".item").read_text().splitlines()[1:]):
        marks = "|".join(str(int(name in genres.split())) for name in order)
        lines.append(f"{film}|{title} ({year})|||URL|{marks}\n")
    (own / "u.item").write_bytes("".join(lines).encode("latin-1", errors="replace"))
    train(run, lockstep, tmp_path / "run2", "--max_steps", "1", *SMALL, data=own)
    assert losses(tmp_path / "run2")[1] == pytest.approx(losses(tmp_path / "run")[1], abs=1e-4)


# --- recommendations


@pytest.fixture(scope="module")
def trained(small_1m, tmp_path_factory):
    """A run of one epoch on small_1m, with adapters that are trained."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    done = subprocess.run([program(bin_folder() / "lockstep"), "run", "gpt2rec", "--data_path", small_1m, "--train_dir", folder,
                           *QUICK, *SMALL, "--batch_size", "60", "--num_epochs", "2", "--use_cache", "false", "--lr", "0.01",
                           "--lr_schedule", "constant"], env=clean_environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, text(done)
    return folder


def test_each_user_gets_films_with_falling_scores_and_titles(run, lockstep, trained, small_1m):
    rows = recommend(run, lockstep, trained, "--topk", "5")
    assert len(rows) == 30
    for row in rows:
        scores = [item["score"] for item in row["items"]]
        assert len(scores) == 5 and scores == sorted(scores, reverse=True)
        assert all(int(item["item"]) % 2 == 0 and item["title"] for item in row["items"])  # odd ids have no line
    seen = {line.split("::")[1] for line in (small_1m / "ratings.dat").read_text().splitlines() if line.startswith("7::")}
    unseen = recommend(run, lockstep, trained, "--user", "7", "--topk", "30", "--exclude_seen")[0]["items"]
    assert {item["item"] for item in unseen} == {str(2 * film) for film in range(1, 31)} - seen
    table = run([lockstep, "gpt2rec", "recommend", "--checkpoint", trained, "--user", "7", "--topk", "2", "--format", "tsv"])
    lines = table.stdout.splitlines()
    assert lines[0] == "user\titem\tscore\ttitle" and len(lines) == 3 and lines[1].startswith("7\t")


def test_somebody_and_a_film_in_words_are_ranked_too(run, lockstep, trained):
    row = recommend(run, lockstep, trained, "--gender", "F", "--age", "34", "--occupation", "2", "--topk", "31", "--title",
                    "Film 99 (1999)", "--genres", "Comedy|Romance")[0]
    assert row["user"] == "User profile: Gender is Female, Age group is 25-34, Occupation is artist."
    assert [item["title"] for item in row["items"] if item["item"] == "new"] == ["Film 99 (1999)"]
    assert len(row["items"]) == 31
    other = recommend(run, lockstep, trained, "--gender", "M", "--age", "60", "--occupation", "writer", "--topk", "31")[0]
    assert {item["item"]: item["score"] for item in row["items"]} != {item["item"]: item["score"] for item in other["items"]}
    audience = recommend(run, lockstep, trained, "--title", "Film 99 (1999)", "--genres", "Drama", "--topk", "4")
    assert len(audience) == 1 and len(audience[0]["users"]) == 4 and audience[0]["title"] == "Film 99 (1999)"


def test_words_that_describe_nobody_are_named_beside_the_known_ones(run, lockstep, trained, small_1m, tmp_path):
    people = [line.split("::") for line in (small_1m / "users.dat").read_text().splitlines()]
    known = sorted({OCCUPATIONS[int(person[3])] for person in people})
    assert "artist" in known and "astronaut" not in known

    def remarks(*flags):
        done = run([lockstep, "gpt2rec", "recommend", "--checkpoint", trained, *flags])
        assert done.returncode == 0 and len(done.stdout.splitlines()) == 1, text(done)
        return [line for line in done.stderr.splitlines() if "none of the users" in line]
    said = f"none of the users that were trained on has the occupation astronaut (known: {', '.join(known)}): nothing was learnt"
    assert [said in line for line in remarks("--occupation", "astronaut")] == [True]
    assert remarks("--gender", "F", "--age", people[0][2], "--occupation", "artist") == []
    assert remarks("--user", "7") == []

    def of_people_who_are(gender):
        folder = tmp_path / f"all{gender}"
        shutil.copytree(small_1m, folder)
        (folder / "users.dat").write_text("".join(f"{person[0]}::{gender}::25::2::12345\n" for person in people))
        return ["--data_path", folder]
    women = of_people_who_are("F")
    assert remarks(*women, "--gender", "F", "--age", "30", "--occupation", "2") == []
    both = remarks(*women, "--gender", "M", "--age", "24", "--occupation", "artist")
    assert len(both) == 1 and "has the gender Male (known: Female); nor the age group 18-24 (known: 25-34): nothing" in both[0]
    assert "the gender Male (known: none)" in remarks(*of_people_who_are(""), "--gender", "M")[0]


@pytest.mark.parametrize("flags,code,message", [
    (["--user", "99"], 2, "--user 99 is not one of the 30 users of"),
    (["--user", "1", "--gender", "F"], 2, "give one of the two"),
    (["--gender", "X"], 2, "expected F or M"),
    (["--occupation", "21"], 2, "expected a word, or a number from 0 to 20"),
    (["--embed_dim", "8"], 2, "is of another model"),
    (["--data_path", "generated"], 2, "was trained with another version of the ratings")])
def test_what_cannot_be_recommended_is_said(run, lockstep, trained, flags, code, message):
    assert message in recommend(run, lockstep, trained, *flags, code=code)


# --- bad input


@pytest.mark.parametrize("spoil,message", [
    (lambda folder: (folder / "movies.dat").unlink(), "movies.dat is missing; this model reads what users and films are"),
    (lambda folder: (folder / "ratings.dat").write_text("1::999::5::1\n"), "ratings.dat:1: film 999 is not in"),
    (lambda folder: (folder / "users.dat").write_text("1;F;1;1;1\n"), "users.dat:1: it has 1 field; found"),
    (lambda folder: (folder / "ratings.dat").write_text(""), "ratings.dat is empty: expected at least two users' interactions"),
    (shutil.rmtree, "there is no such file or folder")])
def test_a_bad_data_set_ends_the_run_with_a_sentence(run, lockstep, tmp_path, spoil, message):
    write_1m(tmp_path / "data")
    spoil(tmp_path / "data")
    done = run([lockstep, "run", "gpt2rec", "--data_path", tmp_path / "data", "--train_dir", tmp_path / "run", *QUICK])
    assert done.returncode == 3, text(done)
    assert message in text(done)


@pytest.mark.parametrize("flags,message", [
    ([], "--data_path is required"),
    (["--data_path", "x", "--epochs", "3", "--phase1_epochs", "2"], "give --phase1_epochs and --phase2_epochs instead"),
    (["--data_path", "x", "--split_ratio", "0.8,0.1,0.2"], "expected three numbers that sum to 1"),
    (["--data_path", "x", "--split_ratio", "0.9,0,0.1"], "sum to 1, the first two above 0, as 0.8,0.1,0.1")])
def test_contradicting_flags_are_refused_before_anything_starts(run, lockstep, flags, message):
    done = run([lockstep, "run", "gpt2rec", *flags])
    assert done.returncode == 2, text(done)
    assert message in text(done)


def test_without_a_test_share_no_test_figure_is_said(run, lockstep, small_1m, tmp_path):
    done = train(run, lockstep, tmp_path / "run", *SMALL, "--split_ratio", "0.9,0.1,0", "--max_steps", "2", data=small_1m)
    assert re.search(r"Epoch \d+: valid \(NDCG@10: 0\.\d{4}, HR@10: 0\.\d{4}\)$", done.stdout, re.MULTILINE), text(done)
    assert not any("test_" in name for name in figures(tmp_path / "run"))
    assert (tmp_path / "run/model.pth").exists() and not (tmp_path / "run/test_results_standard.json").exists()


def test_empty_and_very_long_titles_train(run, lockstep, tmp_path):
    write_1m(tmp_path / "data")
    lines = (tmp_path / "data/movies.dat").read_bytes().split(b"\n")
    lines[0], lines[1] = b"2::::", b"4::" + b"long " * 900 + b"::Drama"
    (tmp_path / "data/movies.dat").write_bytes(b"\n".join(lines))
    done = train(run, lockstep, tmp_path / "run", *SMALL, "--max_steps", "1", data=tmp_path / "data")
    assert "reach --max_length 128" in text(done)
