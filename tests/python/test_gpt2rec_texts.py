"""`lockstep run gpt2rec` and `lockstep gpt2rec recommend`: GPT-2 and its tokenizer from folders, the mean over padding, and the
scores, beside the twin in PyTorch."""
import shutil

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import GPT2Config, GPT2LMHeadModel, GPT2Tokenizer

from gpt2rec_runs import QUICK, SMALL, TrainedTwin, recommend, texts_of, train, write_1m
from programs import text
from runs import Running, losses

END_OF_TEXT = "<|endoftext|>"
VOCABULARY = 400
# A batch of all ratings, so that the loss of a step is that of the weights before it. Nothing is dropped out.
WHOLE = ["--batch_scope", "total", "--batch_size", "1000", "--lr", "0.02", "--lr_schedule", "constant", "--dropout", "0",
         "--lora_dropout", "0"]


@pytest.fixture(scope="module")
def films(tmp_path_factory):
    """(folder, pairs) of data with a film that nobody has rated."""
    folder = tmp_path_factory.mktemp("data") / "ml-1m"
    pairs = write_1m(folder, users=40, films=40)
    with open(folder / "movies.dat", "a", encoding="latin-1") as file:
        file.write("82::A Film That Waits for Somebody to Rate It (1970)::Drama\n")
    return folder, pairs


OTHER_SPLIT = {"ratio": (0.3, 0.3, 0.4), "seed": 7}


def close(found, expected):
    return found == pytest.approx(expected, abs=1e-4)


# --- GPT-2 and its tokenizer from folders


def save_gpt2(folder, seed):
    torch.manual_seed(seed)
    model = GPT2LMHeadModel(GPT2Config(n_layer=2, n_embd=64, n_head=1, n_positions=256, vocab_size=VOCABULARY, bos_token_id=0,
                                       eos_token_id=0))
    model.save_pretrained(folder)
    return model


@pytest.fixture(scope="module")
def tokenizer(films, tmp_path_factory):
    """(folder, tokenizer): byte pairs that are learnt from the texts."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    made.train_from_iterator(sum(texts_of(films[0]), []), trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=[END_OF_TEXT], initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet())))
    assert made.get_vocab_size() > 300 and made.token_to_id(END_OF_TEXT) == 0
    folder = tmp_path_factory.mktemp("tokenizer")
    made.model.save(str(folder))
    return folder, made


def test_gpt2_and_tokenizer_come_from_their_folders(run, lockstep, films, tokenizer, tmp_path):
    model = save_gpt2(tmp_path / "gpt2", seed=1)
    data, pairs = films
    flags = [*WHOLE, "--use_cache", "false", "--gpt2_path", tmp_path / "gpt2", "--tokenizer_path", tokenizer[0]]
    done = train(run, lockstep, tmp_path / "run", *flags, "--max_steps", "5", data=data)
    assert f"byte pairs of {tokenizer[1].get_vocab_size()}" in text(done) and "GPT-2 2x64, " in text(done)
    saved = torch.load(tmp_path / "run/model.pth", weights_only=True)
    for name, tensor in model.state_dict().items():
        layer = name.replace(".c_attn.", ".c_attn.base_layer.").replace(".c_proj.", ".c_proj.base_layer.")
        assert saved[f"gpt2.base_model.model.{layer}"].equal(tensor), name

    def tokenize(line):
        return tokenizer[1].encode(line).ids
    expected = TrainedTwin(tmp_path / "run", data, pairs, tokenize, pad=0).loss()
    of_bytes = TrainedTwin(tmp_path / "run", data, pairs).loss()
    train(run, lockstep, tmp_path / "run", *flags, "--max_steps", "6", data=data)
    found = losses(tmp_path / "run")[6]
    assert found == pytest.approx(expected, abs=1e-5)
    assert not close(found, of_bytes), "bytes as tokens say the same: nothing is shown"

    # `recommend` finds both folders by itself, and where they were moved to.
    rows = recommend(run, lockstep, tmp_path / "run", "--topk", "3")
    assert len(rows) == 40 and all(len(row["items"]) == 3 for row in rows)
    (tmp_path / "elsewhere").mkdir()
    shutil.move(tmp_path / "gpt2", tmp_path / "elsewhere/gpt2")
    assert recommend(run, lockstep, tmp_path / "run", "--topk", "3", "--gpt2_path", tmp_path / "elsewhere/gpt2") == rows


def test_what_save_pretrained_writes_is_enough(run, lockstep, films, tokenizer, tmp_path):
    """From version 5 on Python's transformers writes tokenizer.json alone."""
    folder = tmp_path / "gpt2"
    save_gpt2(folder, seed=1)
    merges = [tuple(line.split()) for line in (tokenizer[0] / "merges.txt").read_text().splitlines()[1:]]
    GPT2Tokenizer(vocab=tokenizer[1].get_vocab(), merges=merges).save_pretrained(folder)
    assert (folder / "tokenizer.json").exists() and not (folder / "vocab.json").exists()
    flags = [*WHOLE, "--max_steps", "2"]
    train(run, lockstep, tmp_path / "one", *flags, "--gpt2_path", folder, data=films[0])
    train(run, lockstep, tmp_path / "two", *flags, "--gpt2_path", folder, "--tokenizer_path", tokenizer[0], data=films[0])
    assert losses(tmp_path / "one") == losses(tmp_path / "two")


def test_a_model_of_the_hub_is_not_downloaded(run, lockstep, films, tmp_path):
    done = run([lockstep, "run", "gpt2rec", "--data_path", films[0], "--train_dir", tmp_path / "run", "--gpt2_path", "openai/gpt2"])
    assert done.returncode == 3, text(done)
    assert "--gpt2_path openai/gpt2: there is no such folder" in " ".join(text(done).split())


def test_a_run_goes_on_with_its_own_gpt2_alone(run, lockstep, films, tokenizer, tmp_path):
    save_gpt2(tmp_path / "gpt2", seed=1)
    flags = ["--gpt2_path", tmp_path / "gpt2", "--tokenizer_path", tokenizer[0], "--batch_scope", "total", "--batch_size", "200"]
    train(run, lockstep, tmp_path / "run", *flags, "--max_steps", "1", data=films[0])

    def go_on(code):
        done = run([lockstep, "run", "gpt2rec", "--data_path", films[0], "--train_dir", tmp_path / "run", *QUICK, *flags,
                    "--max_steps", "2"])
        assert done.returncode == code, text(done)
        return " ".join(text(done).split())
    save_gpt2(tmp_path / "gpt2", seed=2)
    message = go_on(code=2)
    assert "was trained with another version of GPT-2 (sha256" in message and "give the files that it was trained with" in message
    done = run([lockstep, "gpt2rec", "recommend", "--checkpoint", tmp_path / "run", "--user", "1"])
    assert done.returncode == 2 and "was trained with another version of GPT-2 (sha256" in text(done), text(done)

    save_gpt2(tmp_path / "gpt2", seed=1)
    merges = (tokenizer[0] / "merges.txt").read_text()
    (tokenizer[0] / "merges.txt").write_text(merges.rsplit("\n", 2)[0] + "\n")
    assert "was trained with another version of the tokenizer (sha256" in go_on(code=2)
    (tokenizer[0] / "merges.txt").write_text(merges)

    whole = (tmp_path / "gpt2/model.safetensors").read_bytes()
    (tmp_path / "gpt2/model.safetensors").write_bytes(whole[:len(whole) // 2])
    message = go_on(code=3)
    assert f"{tmp_path}/gpt2/model.safetensors" in message and "truncated" in message

    (tmp_path / "gpt2/model.safetensors").write_bytes(whole)
    go_on(code=0)
    assert list(losses(tmp_path / "run")) == [1, 2]


# --- beside the twin


@pytest.mark.parametrize("cache", ["true", "false"], ids=["cached", "dynamic"])
def test_the_mean_over_padding_is_that_of_the_guide(run, lockstep, films, tmp_path, cache):
    """32 users or films, by their ids, are padded to the longest of them. At first all texts say little: after ten steps."""
    data, pairs = films
    flags = [*WHOLE, "--pool", "padded", "--use_cache", cache, "--gpt2_config", "2x64", "--nproc", "2"]
    train(run, lockstep, tmp_path / "run", *flags, "--max_steps", "10", data=data)
    padded, mean = (TrainedTwin(tmp_path / "run", data, pairs, pool=pool).loss() for pool in ("padded", "mean"))
    train(run, lockstep, tmp_path / "run", *flags, "--max_steps", "11", data=data)
    found = losses(tmp_path / "run")[11]
    assert found == pytest.approx(padded, abs=1e-5)
    assert not close(found, mean), "both means say the same: nothing is shown"


@pytest.fixture(scope="module")
def trained(lockstep, films, tmp_path_factory):
    """A run on `films` with adapters that are trained, and with a split that is not the default one."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    flags = [*SMALL, "--batch_size", "100", "--epochs", "2", "--use_cache", "false", "--lr", "0.01", "--lr_schedule", "constant",
             "--seed", OTHER_SPLIT["seed"], "--split_ratio", ",".join(map(str, OTHER_SPLIT["ratio"]))]
    running = Running([lockstep, "run", "gpt2rec", "--data_path", films[0], "--train_dir", folder, *QUICK, *flags], folder.parent)
    assert running.end() == 0, running.output()
    return folder


NEW_FILM = ["--title", "Silent Moon (1998)", "--genres", "Comedy|Romance"]
ITS_TEXT = "Movie: Silent Moon (1998). Genres: Comedy, Romance."
FILMS = [str(film) for film in range(2, 84, 2)]  # the other ids have no line


def by_item(row):
    return {item["item"]: item["score"] for item in row["items"]}


def test_scores_of_somebody_who_is_known_are_the_twins(run, lockstep, films, trained):
    beside = TrainedTwin(trained, *films, **OTHER_SPLIT)
    assert 82 not in beside.films
    rows = recommend(run, lockstep, trained, "--topk", "41")
    for row in rows[::13]:
        scores = beside.scores(int(row["user"]), ITS_TEXT)
        assert close(by_item(row), {film: scores[int(film)] for film in FILMS})
    assert max(scores) - min(scores) > 0.05, "they are too near each other: nothing is shown"
    top = recommend(run, lockstep, trained, "--topk", "5", "--user", row["user"])[0]
    assert close([item["score"] for item in top["items"]], sorted((scores[int(film)] for film in FILMS), reverse=True)[:5])


def test_scores_of_somebody_and_of_a_film_in_words_are_the_twins(run, lockstep, films, trained):
    beside = TrainedTwin(trained, *films, **OTHER_SPLIT)
    scores = beside.scores("User profile: Gender is Female, Age group is 25-34, Occupation is artist.", ITS_TEXT)
    words = ["--gender", "F", "--age", "34", "--occupation", "artist"]
    row = recommend(run, lockstep, trained, *words, *NEW_FILM, "--topk", "42")[0]
    assert close(by_item(row), {**{film: scores[int(film)] for film in FILMS}, "new": scores[-1]})
    for spelt in ("Comedy,Romance", " Comedy , Romance"):
        assert recommend(run, lockstep, trained, *words, *NEW_FILM[:3], spelt, "--topk", "42")[0] == row
    audience = recommend(run, lockstep, trained, *NEW_FILM, "--topk", "40")[0]["users"]
    assert {int(user["user"]) for user in audience} == set(beside.users.tolist())
    for user in audience[::13]:
        assert close(user["score"], beside.scores(int(user["user"]), ITS_TEXT)[-1])
