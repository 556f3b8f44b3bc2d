"""`lockstep sasrec recommend`: its rows are those of the PyTorch twins with the same weights, from a checkpoint and from a file
of weights, and what it cannot use it refuses with the way out."""
import hashlib
import json
import random
import shutil
import subprocess

import pytest
import torch

from programs import clean_environment
from runs import checkpoints, weights
from sasrec_twin import SASRec, take_a_few_steps
from tisasrec_twin import TiSASRec

MAXLEN, HIDDEN, BLOCKS, HEADS, SPAN = 12, 16, 2, 2, 20
SHAPE = {"maxlen": MAXLEN, "hidden_units": HIDDEN, "num_blocks": BLOCKS, "num_heads": HEADS}
GUIDE_NAME = f"epoch=20.lr=0.001.layer={BLOCKS}.head={HEADS}.hidden={HIDDEN}.maxlen={MAXLEN}.pth"
VARIANTS = ("sasrec", "tisasrec")


class Shop:
    """A data set with words as ids: histories[user] is a list of (time, item), in the order that the runner must find."""

    def __init__(self, path):
        draw = random.Random(5)
        items = [f"tea/{n}" for n in range(30)] + ["café", "007", "7", "1000000000000000000"]
        events = [(f"anna-{user}", draw.choice(items), draw.randrange(0, 5000) * 60)
                  for user in range(40) for _ in range(draw.randrange(6, 25))]
        draw.shuffle(events)
        self.path = path
        path.write_text("user_id:token\titem_id:token\ttimestamp:float\n"
                        + "".join(f"{user}\t{item}\t{when}\n" for user, item, when in events), encoding="utf-8")
        counts = {}
        for user, item, _ in events:
            counts[user], counts[item] = counts.get(user, 0) + 1, counts.get(item, 0) + 1
        kept = [event for event in events if counts[event[0]] >= 5 and counts[event[1]] >= 5]
        self.items = list(dict.fromkeys(item for _, item, _ in kept))  # number n is items[n - 1]
        numbers = {item: n for n, item in enumerate(self.items, 1)}
        self.histories = {}
        for user, item, when in kept:
            self.histories.setdefault(user, []).append((when, numbers[item]))
        for history in self.histories.values():
            history.sort(key=lambda event: event[0])  # stable

    def row(self, user):
        """(items, times) as the models see them: right-aligned, zeros before them."""
        times = [when for when, _ in self.histories[user]]
        gap = min((b - a for a, b in zip(times, times[1:]) if b > a), default=1)
        padding = [0] * max(0, MAXLEN - len(times))
        return (padding + [item for _, item in self.histories[user]][-MAXLEN:],
                padding + [round((when - times[0]) / gap) + 1 for when in times][-MAXLEN:])

    def scores(self, twin):
        """Of each user, for every item from number 1."""
        rows = [self.row(user) for user in self.histories]
        inputs = [torch.tensor([row[0] for row in rows])]
        if isinstance(twin, TiSASRec):
            inputs.append(torch.tensor([row[1] for row in rows]))
        with torch.no_grad():
            last = twin.eval().encode(*inputs)[:, -1]
            return dict(zip(self.histories, (last @ twin.item_emb.weight.T)[:, 1:].tolist()))


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    return Shop(tmp_path_factory.mktemp("data") / "shop.inter")


def make_twin(variant, items):
    torch.manual_seed(3)
    if variant == "sasrec":
        return SASRec(items, dropout_rate=0.0, **SHAPE)
    return TiSASRec(items, dropout_rate=0.0, time_span=SPAN, **SHAPE)


def train(lockstep, shop, folder, variant):
    shape = [word for name, value in SHAPE.items() for word in (f"--{name}", str(value))]
    times = ["--time_span", str(SPAN)] if variant == "tisasrec" else []
    done = subprocess.run([lockstep, "run", "sasrec", "--variant", variant, "--dataset", shop.path, "--train_dir", folder,
                           "--status_port", "0", "--max_steps", "8", "--checkpoint_every", "4", "--lr", "0.01", *shape, *times],
                          capture_output=True, text=True, check=False, env=clean_environment(), timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def trained(lockstep, shop, tmp_path_factory):
    """variant → the folder of a run."""
    return {variant: train(lockstep, shop, tmp_path_factory.mktemp("runs") / variant, variant) for variant in VARIANTS}


@pytest.fixture
def recommend(run, lockstep):
    def call(checkpoint, *flags, **environment):
        return run([lockstep, "sasrec", "recommend", "--checkpoint", checkpoint, *flags], **environment)
    return call


def rows_of(done):
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def assert_rows_are_those_of(twin, shop, rows, excluding_seen=False):
    expected = shop.scores(twin)
    assert [row["user"] for row in rows] == list(expected)
    for row in rows:
        seen = {item for _, item in shop.histories[row["user"]]} if excluding_seen else set()
        by_id = {shop.items[n - 1]: score for n, score in enumerate(expected[row["user"]], 1) if n not in seen}
        found = {entry["item"]: entry["score"] for entry in row["items"]}
        assert found == pytest.approx(by_id, abs=1e-4)
        given = [entry["score"] for entry in row["items"]]
        assert given == sorted(given, reverse=True)


def assert_same_rows(rows, others):
    """To the rounding: a product of another number of rows may round otherwise."""
    assert [row["user"] for row in rows] == [row["user"] for row in others]
    for row, other in zip(rows, others):
        assert {e["item"]: e["score"] for e in row["items"]} == pytest.approx(
            {e["item"]: e["score"] for e in other["items"]}, abs=1e-5)


# --- the rows


@pytest.mark.parametrize("variant", VARIANTS)
def test_rows_of_a_checkpoint_are_those_of_the_twin(recommend, trained, shop, variant):
    twin = make_twin(variant, len(shop.items))
    twin.load_state_dict(weights(trained[variant]))
    rows = rows_of(recommend(trained[variant], "--topk", len(shop.items)))
    assert_rows_are_those_of(twin, shop, rows)
    assert {"café", "007", "7", "1000000000000000000"} <= {entry["item"] for entry in rows[0]["items"]}


@pytest.mark.parametrize("variant", VARIANTS)
def test_rows_of_the_public_implementation_s_weights_are_those_of_the_twin(recommend, shop, tmp_path, variant):
    twin = make_twin(variant, len(shop.items))
    take_a_few_steps(twin, len(shop.items), MAXLEN)
    path = tmp_path / f"{'SASRec' if variant == 'sasrec' else 'TiSASRec'}.{GUIDE_NAME}"
    torch.save({f"module.{name}": tensor for name, tensor in twin.state_dict().items()}, path)
    more = ["--time_span", SPAN] if variant == "tisasrec" else []
    rows = rows_of(recommend(path, "--dataset", shop.path, "--topk", len(shop.items), *more))
    assert_rows_are_those_of(twin, shop, rows)


def test_what_a_user_has_chosen_is_left_out_when_asked(recommend, trained, shop):
    twin = make_twin("sasrec", len(shop.items))
    twin.load_state_dict(weights(trained["sasrec"]))
    rows = rows_of(recommend(trained["sasrec"], "--exclude_seen", "--topk", len(shop.items)))
    assert_rows_are_those_of(twin, shop, rows, excluding_seen=True)


def test_of_equal_scores_the_item_that_came_first_in_the_file_is_first(recommend, shop, tmp_path):
    twin = make_twin("sasrec", len(shop.items))
    equal = [5, 2, 9, 20, 13]
    with torch.no_grad():
        twin.item_emb.weight[equal] = 0
    torch.save(twin.state_dict(), tmp_path / f"SASRec.{GUIDE_NAME}")
    for row in rows_of(recommend(tmp_path / f"SASRec.{GUIDE_NAME}", "--dataset", shop.path, "--topk", len(shop.items))):
        assert [e["item"] for e in row["items"] if e["score"] == 0] == [shop.items[n - 1] for n in sorted(equal)]


def test_the_rows_are_the_best_and_both_formats_say_the_same(recommend, trained, shop):
    whole = rows_of(recommend(trained["sasrec"], "--topk", len(shop.items)))
    best = rows_of(recommend(trained["sasrec"], "--topk", "3"))
    assert [row["items"] for row in best] == [row["items"][:3] for row in whole]
    assert all(len(row["items"]) == 10 for row in rows_of(recommend(trained["sasrec"])))
    done = recommend(trained["sasrec"], "--topk", "3", "--format", "tsv")
    header, *lines = [line.split("\t") for line in done.stdout.splitlines()]
    assert header == ["user", "item", "score"]
    assert [(user, item, float(score)) for user, item, score in lines] == [
        (row["user"], entry["item"], entry["score"]) for row in best for entry in row["items"]]


def test_users_are_one_those_of_a_file_or_all(recommend, trained, shop, tmp_path):
    whole = {row["user"]: row for row in rows_of(recommend(trained["tisasrec"]))}
    assert list(whole) == list(shop.histories)
    assert_same_rows(rows_of(recommend(trained["tisasrec"], "--user", "anna-7")), [whole["anna-7"]])
    (tmp_path / "users.txt").write_text("anna-9\r\n\nanna-3\nanna-9", encoding="utf-8")
    assert_same_rows(rows_of(recommend(trained["tisasrec"], "--users", tmp_path / "users.txt")),
                     [whole[user] for user in ("anna-9", "anna-3", "anna-9")])


def test_numbers_as_ids_keep_their_gaps_and_what_nobody_chose_is_not_recommended(recommend, tmp_path):
    lines = [f"{user} {item}\n" for user in (3, 4, 9) for item in (2, 5, 6, 40)]
    (tmp_path / "gaps.txt").write_text("".join(lines), encoding="utf-8")
    twin = SASRec(40, dropout_rate=0.0, **SHAPE)
    torch.save(twin.state_dict(), tmp_path / f"SASRec.{GUIDE_NAME}")
    rows = rows_of(recommend(tmp_path / f"SASRec.{GUIDE_NAME}", "--dataset", tmp_path / "gaps.txt", "--topk", "4"))
    assert [row["user"] for row in rows] == ["3", "4", "9"]
    assert all({entry["item"] for entry in row["items"]} == {"2", "5", "6", "40"} for row in rows)
    done = recommend(tmp_path / f"SASRec.{GUIDE_NAME}", "--dataset", tmp_path / "gaps.txt", "--topk", "5")
    assert done.returncode == 2 and "--topk 5 is above the 4 items" in done.stderr


# --- where it comes from and where it goes


def test_the_data_set_is_found_where_the_run_had_it_or_where_a_flag_says(recommend, trained, shop, tmp_path):
    before = recommend(trained["sasrec"]).stdout
    moved = tmp_path / "elsewhere"
    moved.mkdir()
    shutil.copytree(trained["sasrec"], moved / "run")
    (moved / "run/args.txt").unlink()
    done = recommend(moved / "run")
    assert done.returncode == 3 and 'data set "shop" not found' in done.stderr and "--dataset PATH" in done.stderr
    shutil.copy(shop.path, moved)
    for flags in (["--dataset", shop.path], ["--data_dir", moved]):
        done = recommend(moved / "run", *flags)
        assert (done.returncode, done.stdout) == (0, before)


def test_a_step_folder_is_as_good_as_its_run_and_standard_error_says_which_it_was(recommend, trained):
    oldest, newest = checkpoints(trained["sasrec"])[0], checkpoints(trained["sasrec"])[-1]
    done = recommend(trained["sasrec"])
    assert newest in done.stderr and "40 users, the best 10 of 34 items" in done.stderr
    assert recommend(trained["sasrec"] / newest).stdout == done.stdout
    assert recommend(trained["sasrec"] / oldest).stdout != done.stdout


def test_a_damaged_checkpoint_is_passed_over_and_alone_it_is_refused(recommend, trained, tmp_path):
    shutil.copytree(trained["sasrec"], tmp_path / "run")
    steps = checkpoints(tmp_path / "run")
    whole = recommend(tmp_path / "run" / steps[-2]).stdout
    model = tmp_path / "run" / steps[-1] / "model.safetensors"
    model.write_bytes(model.read_bytes()[:-1] + b"?")
    done = recommend(tmp_path / "run")
    assert (done.returncode, done.stdout) == (0, whole) and f"passed over {model.parent}" in done.stderr
    done = recommend(model.parent)
    assert (done.returncode, done.stdout) == (4, "") and "model.safetensors" in done.stderr


def test_a_file_gets_the_whole_result_or_stays_as_it_was(recommend, trained, shop, tmp_path):
    out = tmp_path / "rows.jsonl"
    out.write_text("before", encoding="utf-8")
    assert recommend(trained["sasrec"], "--out", out, "--topk", "500").returncode == 2
    assert out.read_text(encoding="utf-8") == "before"
    done = recommend(trained["sasrec"], "--out", out)
    assert (done.returncode, done.stdout) == (0, "")
    assert len(out.read_text(encoding="utf-8").splitlines()) == len(shop.histories)
    assert [path.name for path in tmp_path.iterdir()] == ["rows.jsonl"]
    done = recommend(trained["sasrec"], "--out", tmp_path / "no/such/rows.jsonl")
    assert done.returncode == 2 and f"--out {tmp_path}/no/such/rows.jsonl" in done.stderr


def test_a_reader_that_leaves_ends_it_quietly(lockstep, trained):
    with subprocess.Popen([lockstep, "sasrec", "recommend", "--checkpoint", trained["sasrec"]], stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True, env=clean_environment()) as process:
        process.stdout.close()
        said = process.stderr.read()
        process.wait(timeout=60)
    assert "error" not in said and "rite" not in said


def test_a_full_disk_is_an_error(lockstep, trained):
    with open("/dev/full", "wb") as full:
        done = subprocess.run([lockstep, "sasrec", "recommend", "--checkpoint", trained["sasrec"]], stdout=full,
                              stderr=subprocess.PIPE, text=True, check=False, env=clean_environment())
    assert done.returncode == 4 and "standard output: No space left on device" in done.stderr


# --- what is refused


@pytest.mark.parametrize("flags, code, parts", [
    (["--user", "anna-99"], 2, ['--user "anna-99" is not in', "shop.inter", "40 users with ids such as", '"anna-']),
    (["--topk", "35"], 2, ["--topk 35 is above the 34 items of", "shop.inter"]),
    (["--maxlen", "20"], 2, ["is of another model", "pos_emb.weight", "give the flags that it was trained with"]),
    (["--users", "/no/such"], 3, ["--users: open /no/such: No such file or directory; expected a file"]),
    (["--min_count", "0", "--dataset", "EXTENDED"], 3, ["extended.inter has 35 items", "was trained on 34", "--dataset"]),
    (["--dataset", "/no/such.inter"], 3, ['data set "/no/such.inter" not found']),
], ids=lambda value: " ".join(value) if isinstance(value, list) else str(value))
def test_what_it_cannot_do_is_refused_with_the_way_out(recommend, trained, shop, tmp_path, flags, code, parts):
    (tmp_path / "extended.inter").write_text(shop.path.read_text(encoding="utf-8") + "anna-1\tnew\t1\n", encoding="utf-8")
    done = recommend(trained["sasrec"], *[str(tmp_path / "extended.inter") if flag == "EXTENDED" else flag for flag in flags])
    assert (done.returncode, done.stdout) == (code, "")
    assert [part for part in parts if part not in done.stderr] == [], done.stderr


def test_items_with_other_numbers_than_in_training_are_refused_and_new_lines_at_the_end_are_not(recommend, trained, shop, tmp_path):
    header, *lines = shop.path.read_text(encoding="utf-8").splitlines(keepends=True)
    first, last = shop.items[0], shop.items[-1]
    (tmp_path / "appended.inter").write_text(header + "".join(lines) + f"anna-1\t{last}\t1\n", encoding="utf-8")
    (tmp_path / "prepended.inter").write_text(header + f"anna-1\t{last}\t1\n" + "".join(lines), encoding="utf-8")
    before = rows_of(recommend(trained["sasrec"], "--user", "anna-2"))
    assert_same_rows(rows_of(recommend(trained["sasrec"], "--user", "anna-2", "--dataset", tmp_path / "appended.inter")), before)
    done = recommend(trained["sasrec"], "--user", "anna-2", "--dataset", tmp_path / "prepended.inter")
    assert (done.returncode, done.stdout) == (3, "") and first != last
    assert "it was trained with other item numbers than" in done.stderr and "prepended.inter has now" in done.stderr
    assert "Give the file that it was trained on" in done.stderr and checkpoints(trained["sasrec"])[-1] in done.stderr


@pytest.mark.parametrize("text, parts", [
    ("anna-1\n\nanna-2\tx\n", ["users.txt:3: user", "is not in", "ids such as"]), ("", ["users.txt is empty"]),
    ("\n\n", ["users.txt is empty"]), ("\x00\x01" * 500, ["users.txt:1: user"])])
def test_a_bad_line_of_the_users_file_is_named(recommend, trained, tmp_path, text, parts):
    (tmp_path / "users.txt").write_text(text, encoding="utf-8")
    done = recommend(trained["sasrec"], "--users", tmp_path / "users.txt")
    assert (done.returncode, done.stdout) == (3, "")
    assert [part for part in parts if part not in done.stderr] == [] and len(done.stderr) < 1000, done.stderr


def test_a_path_that_holds_no_weights_is_refused(recommend, shop, tmp_path):
    done = recommend(tmp_path / "nowhere")
    assert done.returncode == 2 and f"--checkpoint {tmp_path}/nowhere: No such file or directory" in done.stderr
    (tmp_path / "empty").mkdir()
    done = recommend(tmp_path / "empty")
    assert done.returncode == 2 and f"{tmp_path}/empty holds no checkpoint" in done.stderr
    (tmp_path / f"SASRec.{GUIDE_NAME}").write_text("no weights", encoding="utf-8")
    done = recommend(tmp_path / f"SASRec.{GUIDE_NAME}", "--dataset", shop.path)
    assert (done.returncode, done.stdout) == (4, "") and GUIDE_NAME in done.stderr


def test_a_checkpoint_of_another_workload_is_refused(recommend, trained, tmp_path):
    shutil.copytree(trained["sasrec"], tmp_path / "run")
    step = tmp_path / "run" / checkpoints(tmp_path / "run")[-1]
    state = json.loads((step / "state.json").read_text(encoding="utf-8"))
    del state["checksum"]
    state["workload"] = "chess"
    canonical = json.dumps(state, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    state["checksum"] = hashlib.sha256(canonical.encode()).hexdigest()
    (step / "state.json").write_text(json.dumps(state), encoding="utf-8")
    done = recommend(step)
    assert (done.returncode, done.stdout) == (2, "")
    assert "is a checkpoint of the workload chess, not of sasrec" in done.stderr


def test_weights_whose_flags_are_not_known_are_refused_by_the_flags_that_are_missing(recommend, shop, tmp_path):
    twin = make_twin("sasrec", len(shop.items))
    torch.save(twin.state_dict(), tmp_path / "mine.pth")
    done = recommend(tmp_path / "mine.pth", "--maxlen", MAXLEN)
    assert done.returncode == 2
    assert "--dataset, --variant, --hidden_units, --num_blocks, --num_heads" in done.stderr and "--maxlen," not in done.stderr
    flags = [str(word) for name, value in SHAPE.items() for word in (f"--{name}", value)]
    rows = rows_of(recommend(tmp_path / "mine.pth", "--dataset", shop.path, "--variant", "sasrec", "--topk",
                             len(shop.items), *flags))
    assert_rows_are_those_of(twin, shop, rows)


def test_weights_that_are_not_finite_are_refused(recommend, shop, tmp_path):
    twin = make_twin("sasrec", len(shop.items))
    with torch.no_grad():
        twin.pos_emb.weight[3] = float("nan")
    torch.save(twin.state_dict(), tmp_path / f"SASRec.{GUIDE_NAME}")
    done = recommend(tmp_path / f"SASRec.{GUIDE_NAME}", "--dataset", shop.path)
    assert (done.returncode, done.stdout) == (4, "") and '"pos_emb.weight" holds numbers that are not finite' in done.stderr


def test_a_bad_line_is_refused_before_anything_is_read(run, lockstep):
    cases = [(["recommend"], "--checkpoint is required"), (["recomend"], 'did you mean "recommend"?'),
             ([], "expected a task: recommend"), (["--dataset", "x"], "to train: lockstep run sasrec --dataset"),
             (["recommend", "--checkpoint", "x", "--topk", "0"], '--topk: found "0", expected an integer from 1'),
             (["recommend", "--checkpoint", "x", "--user", "1", "--users", "f"], "--user and --users contradict"),
             (["recommend", "--checkpoint", "x", "--lr", "1"], "unknown flag --lr"),
             (["recommend", "--checkpoint", "x", "--excludeseen"], "did you mean --exclude_seen?")]
    for words, part in cases:
        done = run([lockstep, "sasrec", *words], LOCKSTEP_WORKER="/no/worker")
        assert (done.returncode, done.stdout) == (2, "") and part in done.stderr, (words, done.stderr)


def test_a_good_line_becomes_one_worker_with_the_same_words(run, lockstep):
    words = ["sasrec", "recommend", "--checkpoint", "a b", "--topk=3"]
    done = run([lockstep, *words], LOCKSTEP_WORKER="/bin/echo")
    assert (done.returncode, done.stdout) == (0, " ".join(words) + "\n")


def test_help_lists_its_flags_and_no_others(run, lockstep, worker):
    text = run([lockstep, "sasrec", "recommend", "--help"]).stdout
    assert text == run([worker, "sasrec", "recommend", "--help"]).stdout
    for flag in ("--checkpoint", "--out", "--user", "--users", "--topk", "--exclude_seen", "--maxlen", "--dataset"):
        assert f"{flag} " in text
    assert "--lr" not in text and "--eval_users" not in text
    assert "lockstep sasrec recommend" in run([lockstep, "sasrec", "--help"]).stdout
