"""Runs of `lockstep run gpt2rec` on small data made here, and the twin (gpt2rec_twin.py) with what they have trained."""
import json
import random
import re

import torch

import gpt2rec_twin as twin
from programs import text
from runs import weights

QUICK = ["--log_every", "1", "--status_port", "0", "--threads", "1"]
SMALL = ["--gpt2_config", "2x32", "--batch_scope", "total"]
RATIO = (0.8, 0.1, 0.1)
SEED = 42


def write_1m(folder, users=14, films=18, seed=1):
    """The three files of MovieLens-1M, small, with a title in Latin-1 and ids that nobody has."""
    draw = random.Random(seed)
    folder.mkdir(exist_ok=True)
    (folder / "users.dat").write_text("".join(f"{user}::{draw.choice('FM')}::{draw.choice([1, 18, 25, 35, 45, 50, 56])}::"
                                              f"{draw.randint(0, 20)}::12345\n" for user in range(1, users + 1)))
    titles = [f"Film {film} (19{film + 10})" for film in range(1, films + 1)]
    titles[2] = "Café (1954)"
    genres = ["Drama", "Comedy|Romance", "Sci-Fi"]
    (folder / "movies.dat").write_bytes("".join(f"{2 * film}::{title}::{genres[film % 3]}\n" for film, title in
                                                enumerate(titles, 1)).encode("latin-1"))
    pairs = [(user, 2 * film) for user in range(1, users + 1) for film in range(1, films + 1) if draw.random() < 0.5]
    draw.shuffle(pairs)
    (folder / "ratings.dat").write_text("".join(f"{user}::{film}::5::{number}\n" for number, (user, film) in enumerate(pairs)))
    return pairs


AGES = {1: "0-18", 18: "18-24", 25: "25-34", 35: "35-44", 45: "45-49", 50: "50-55", 56: "56+"}
OCCUPATIONS = ["other or not specified", "academic/educator", "artist", "clerical/admin", "college/grad student",
               "customer service", "doctor/health care", "executive/managerial", "farmer", "homemaker", "K-12 student",
               "lawyer", "programmer", "retired", "sales/marketing", "scientist", "self-employed", "technician/engineer",
               "tradesman/craftsman", "unemployed", "writer"]


def texts_of(folder):
    users = {0: ("Unknown", "Unknown", "Unknown")}
    for line in (folder / "users.dat").read_text().splitlines():
        user, gender, age, occupation, _ = line.split("::")
        users[int(user)] = ({"F": "Female", "M": "Male"}[gender], AGES[int(age)], OCCUPATIONS[int(occupation)])
    films = {}
    for line in (folder / "movies.dat").read_bytes().decode("latin-1").splitlines():
        film, title, genres = line.split("::")
        films[int(film)] = (title, ", ".join(genres.split("|")))
    return ([f"User profile: Gender is {g}, Age group is {a}, Occupation is {o}." for _, (g, a, o) in sorted(users.items())],
            ["Movie: {}. Genres: {}.".format(*films.get(film, ("Unknown", "Unknown"))) for film in range(max(films) + 1)])


def train(run, lockstep, folder, *flags, data="generated", timeout=300):
    done = run([lockstep, "run", "gpt2rec", "--data_path", data, "--train_dir", folder, *QUICK, *flags], timeout=timeout)
    assert done.returncode == 0, text(done)
    return done


def recommend(run, lockstep, trained, *flags, code=0):
    done = run([lockstep, "gpt2rec", "recommend", "--checkpoint", trained, *flags])
    assert done.returncode == code, text(done)
    return text(done) if code else [json.loads(line) for line in done.stdout.splitlines()]


def made_twin(state, attention=True):
    torch.set_num_threads(1)  # several take longer for tensors as small as these
    users, width = state["user_emb.weight"].shape
    layers = 1 + max(int(found[1]) for found in (re.search(r"transformer\.h\.(\d+)\.", name) for name in state) if found)
    vocabulary, text_width = state["gpt2.base_model.model.lm_head.weight"].shape
    context = state["gpt2.base_model.model.transformer.wpe.weight"].shape[0]
    made = twin.Recommender(users, state["item_emb.weight"].shape[0],
                            twin.small_gpt2(layers, text_width, vocabulary, context), text_width, width, attention)
    made.load_state_dict(state, strict=True)
    return made.eval()


def with_means(embedding, known):
    """Of `known` their own; of all others, and of one more, the mean of those."""
    of_known = embedding.weight[known]
    means = of_known.mean(0).repeat(len(embedding.weight) + 1, 1)
    return torch.nn.Embedding.from_pretrained(means.index_copy(0, known, of_known))


class TrainedTwin:
    """The twin with the newest checkpoint of a run, and what it makes of the run's data. GPT-2, which is in no checkpoint, is
    that of the run's model.pth. `tokenize`: a text → tokens; unless it is given, bytes are tokens."""

    def __init__(self, run_folder, data, pairs, tokenize=lambda line: list(line.encode()), pad=256, pool="mean", ratio=RATIO,
                 seed=SEED):
        state = torch.load(run_folder / "model.pth", weights_only=True)
        for name, tensor in weights(run_folder).items():
            if ".lora_" in name:
                name = "gpt2.base_model.model.transformer." + re.sub("(lora_[AB])", r"\1.default", name)
            assert name in state, name
            state[name] = tensor
        self.model = made_twin(state)
        self.train_pairs = twin.split(pairs, ratio, seed)[0]
        self.users, self.films = torch.tensor(self.train_pairs).T
        encode = self.model.encode_padded if pool == "padded" else self.model.encode
        self.encode = lambda texts: encode(texts, tokenize, pad)
        with torch.no_grad():
            self.user_texts, self.film_texts = map(self.encode, texts_of(data))
            self.model.user_emb = with_means(self.model.user_emb, self.users.unique())
            self.model.item_emb = with_means(self.model.item_emb, self.films.unique())

    def loss(self):
        """Of all ratings that are trained on, each with its static negative."""
        negatives = torch.tensor(twin.static_negatives(self.train_pairs, SEED))
        with torch.no_grad():
            of_users = self.model.side("user", self.users, self.user_texts[self.users])
            return twin.bpr(*(self.model.score(of_users, self.model.side("item", ids, self.film_texts[ids]))
                              for ids in (self.films, negatives))).item()

    def scores(self, user, new_film):
        """Of all films by their ids, and last of the new one, a text. `user`: an id, or the text of somebody new."""
        with torch.no_grad():
            film_texts = torch.cat([self.film_texts, self.encode([new_film])])
            user_texts = self.user_texts if isinstance(user, int) else torch.cat([self.user_texts, self.encode([user])])
            ids = torch.tensor([user if isinstance(user, int) else len(self.user_texts)])
            films = self.model.side("item", torch.arange(len(film_texts)), film_texts)
            somebody = self.model.side("user", ids, user_texts[ids])
            return self.model.score(somebody.expand(len(films), -1), films).tolist()
