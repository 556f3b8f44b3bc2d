"""Two ways to train and evaluate the recommender with GPT-2 in PyTorch (tests/python/gpt2rec_twin.py), the opponents of
bench_gpt2rec.py. Written from the description of the guide's code:

  guide       as the guide's code does it: texts are tokenised in each step, in chunks of 32 that are padded together, go
              through the language-model head too, and are pooled over the padding; users and films of a pair go through
              the model one pair after the other; the norm of the gradient is taken tensor by tensor, on the host; the
              evaluation goes user by user
  vectorised  as a good user of PyTorch would: texts are tokenised once, those of a batch without repetition and sorted by
              length, through GPT-2's layers alone; batches are slices of tensors, nothing is read back in a step, Adam is
              fused; the evaluation scores many users at once by the two halves of the first layer

    python gpt2rec_ways.py --way guide --mode cached --data_path ml-1m --tokenizer FOLDER --gpt2_config 2x64 --steps 20

Prints one JSON object: step_seconds and step_cpu_seconds (each step's), user_seconds and user_cpu_seconds (of the evaluation,
per user), rss_peak_mib, gpu_peak_mib (that the allocator reserved), loss (of the last step).
"""
import argparse
import contextlib
import json
import math
import pathlib
import resource
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "python"))
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from tokenizers import Tokenizer, models, pre_tokenizers

import gpt2rec_twin as twin

END_OF_TEXT = 50256
MAX_LENGTH = 128
CHUNK = 32
TOKENS_AT_ONCE = 4096
TOP = 50
AGE_GROUPS = {1: "0-18", 18: "18-24", 25: "25-34", 35: "35-44", 45: "45-49", 50: "50-55", 56: "56+"}
OCCUPATIONS = [name.replace("_", " ") for name in (
    "other academic/educator artist clerical/admin college/grad_student customer_service doctor/health_care "
    "executive/managerial farmer homemaker K-12_student lawyer programmer retired sales/marketing scientist self-employed "
    "technician/engineer tradesman/craftsman unemployed writer").split()]


def hidden_of(layers, tokens, lengths):
    """Last hidden states [N, T, W] of texts that are padded at the right, and where their tokens are [N, T]."""
    mask = torch.arange(tokens.shape[1])[None] < lengths[:, None]
    return layers(tokens, attention_mask=mask.long()).last_hidden_state, mask


def pooled(hidden, mask):
    return (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)


class Data:
    """MovieLens-1M's three files; ids from 0 to the largest."""

    def __init__(self, folder):
        folder = pathlib.Path(folder)

        def lines(name):
            return [line.split("::") for line in (folder / name).read_text(encoding="latin-1").splitlines()]
        self.ratings = np.array([[int(row[0]), int(row[1])] for row in lines("ratings.dat")])
        users = {int(row[0]): row for row in lines("users.dat")}
        items = {int(row[0]): row for row in lines("movies.dat")}
        self.num_users, self.num_items = max(users) + 1, max(items) + 1
        self.user_texts = [self.user_text(users.get(i)) for i in range(self.num_users)]
        self.item_texts = [self.item_text(items.get(i)) for i in range(self.num_items)]
        order = np.random.default_rng(42).permutation(len(self.ratings))
        self.train = self.ratings[order[:int(0.8 * len(order))]]
        self.test = self.ratings[order[int(0.8 * len(order)):]]
        seen = {user: set() for user in range(self.num_users)}
        for user, item in self.train:
            seen[user].add(item)
        draw = np.random.default_rng(1)
        self.negatives = draw.integers(1, self.num_items, len(self.train))
        for i, (user, _) in enumerate(self.train):
            while self.negatives[i] in seen[user]:
                self.negatives[i] = draw.integers(1, self.num_items)

    @staticmethod
    def user_text(row):
        if row is None:
            return "User profile: Unknown user."
        gender = {"M": "Male", "F": "Female"}[row[1]]
        return (f"User profile: Gender is {gender}, Age group is {AGE_GROUPS[int(row[2])]}, "
                f"Occupation is {OCCUPATIONS[int(row[3])]}.")

    @staticmethod
    def item_text(row):
        return "Movie: Unknown movie." if row is None else f"Movie: {row[1]}. Genres: {', '.join(row[2].split('|'))}."


def read_tokenizer(folder):
    names = ("encoder.json", "vocab.bpe") if pathlib.Path(folder, "vocab.bpe").exists() else ("vocab.json", "merges.txt")
    tokenizer = Tokenizer(models.BPE.from_file(*(str(pathlib.Path(folder, name)) for name in names)))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.enable_truncation(MAX_LENGTH)
    return tokenizer


class Guide:
    """As the guide's code."""

    def __init__(self, model, data, tokenizer):
        self.model, self.data, self.tokenizer = model, data, tokenizer
        tokenizer.enable_padding(pad_id=END_OF_TEXT)
        self.cache = None
        self.optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=1e-3)

    def encode(self, texts):
        vectors = []
        for begin in range(0, len(texts), CHUNK):
            encodings = self.tokenizer.encode_batch(texts[begin:begin + CHUNK])
            output = self.model.gpt2(input_ids=torch.tensor([one.ids for one in encodings]),
                                     attention_mask=torch.tensor([one.attention_mask for one in encodings]),
                                     output_hidden_states=True)
            vectors.append(output.hidden_states[-1].mean(1))
        return torch.cat(vectors)

    def fill_cache(self):
        self.model.eval()
        with torch.no_grad():
            self.cache = {"user": self.encode(self.data.user_texts), "item": self.encode(self.data.item_texts)}
        self.model.train()

    def draw_cache(self):
        width = self.model.gpt2.config.n_embd
        self.cache = {"user": torch.randn(self.data.num_users, width), "item": torch.randn(self.data.num_items, width)}

    def vectors(self, kind, ids):
        if self.cache:
            return self.cache[kind][ids]
        texts = getattr(self.data, kind + "_texts")
        return self.encode([texts[i] for i in ids.tolist()])

    def scores(self, users, items):
        return self.model.score(self.model.side("user", users, self.vectors("user", users)),
                                self.model.side("item", items, self.vectors("item", items)))

    def batches(self, batch_size):
        rows = torch.utils.data.TensorDataset(torch.from_numpy(self.data.train[:, 0]), torch.from_numpy(self.data.train[:, 1]),
                                              torch.from_numpy(self.data.negatives))
        while True:
            generator = torch.Generator(torch.get_default_device())
            for batch in torch.utils.data.DataLoader(rows, batch_size, shuffle=True, generator=generator):
                yield [part.to(torch.get_default_device()) for part in batch]

    def step(self, users, positives, negatives):
        self.optimizer.zero_grad()
        loss = twin.bpr(self.scores(users, positives), self.scores(users, negatives))
        if not math.isfinite(loss.item()):
            raise SystemExit("the loss is not finite")
        loss.backward()
        norm = 0.0
        for parameter in self.model.parameters():
            if parameter.grad is not None:
                norm += parameter.grad.norm(2).item() ** 2
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        return loss.item()

    def rankings(self, users):
        items = torch.arange(self.data.num_items)
        found = []
        for user in users:
            parts = [self.scores(torch.full([len(part)], user), part) for part in items.split(1000)]
            found.append(torch.topk(torch.cat(parts), TOP).indices.tolist())
        return found


class Vectorised:
    """As a good user of PyTorch."""

    def __init__(self, model, data, tokenizer):
        self.model, self.data = model, data
        self.numbers = {}
        distinct = list(dict.fromkeys(data.user_texts + data.item_texts))
        number = {text: i for i, text in enumerate(distinct)}
        self.numbers = {kind: torch.tensor([number[text] for text in texts])
                        for kind, texts in (("user", data.user_texts), ("item", data.item_texts))}
        self.tokens = [torch.tensor(one.ids, device="cpu") for one in tokenizer.encode_batch(distinct)]
        self.lengths = torch.tensor([len(one) for one in self.tokens], device="cpu")
        self.cache = None
        self.optimizer = torch.optim.Adam([p for name, p in model.named_parameters() if p.requires_grad and self.is_used(name)],
                                          lr=1e-3, fused=True)
        self.parameters = [p for group in self.optimizer.param_groups for p in group["params"]]

    @staticmethod
    def is_used(name):
        return not any(part in name for part in ("id_q", "id_k", "id_v", "meta_q", "meta_k", "contrastive"))

    def encode(self, numbers):
        """Vectors of distinct texts, in the order of `numbers`."""
        device, numbers = numbers.device, numbers.cpu()
        order = torch.argsort(self.lengths[numbers])
        groups, vectors = [[]], []
        for number in numbers[order].tolist():
            if (len(groups[-1]) + 1) * self.lengths[number] > TOKENS_AT_ONCE:
                groups.append([])
            groups[-1].append(number)
        for group in groups:
            tokens = nn.utils.rnn.pad_sequence([self.tokens[i] for i in group], batch_first=True, padding_value=END_OF_TEXT)
            lengths = self.lengths[torch.tensor(group, device="cpu")]
            vectors.append(pooled(*hidden_of(self.model.gpt2.base_model.model.transformer, tokens.to(device), lengths.to(device))))
        return torch.cat(vectors)[torch.argsort(order).to(device)]

    def fill_cache(self):
        self.model.eval()
        with torch.no_grad():
            self.cache = self.encode(torch.arange(len(self.tokens)))
        self.model.train()

    def draw_cache(self):
        self.cache = torch.randn(len(self.tokens), self.model.gpt2.config.n_embd)

    def batches(self, batch_size):
        rows = torch.tensor(np.column_stack([self.data.train, self.data.negatives]))
        while True:
            for part in rows[torch.randperm(len(rows))].split(batch_size):
                yield part.unbind(1)

    def side(self, kind, ids, texts):
        """Without what changes nothing: the softmax over one text is 1."""
        fusion = getattr(self.model, kind + "_fusion")
        of_id = getattr(self.model, kind + "_emb")(ids)
        of_text = fusion.meta_v(getattr(self.model, kind + "_meta_proj")(texts))
        return fusion.norm(fusion.out_proj(torch.cat([of_id, of_text], -1)) + of_id)

    def step(self, users, positives, negatives):
        items = torch.cat([positives, negatives])
        rows = (self.numbers["user"][users], self.numbers["item"][items])
        texts = self.cache
        if texts is None:
            distinct, inverse = torch.unique(torch.cat(rows), return_inverse=True)
            texts = self.encode(distinct)
            rows = inverse.split([len(users), len(items)])
        user = self.side("user", users, texts[rows[0]])
        item = self.side("item", items, texts[rows[1]])
        scores = self.model.score_mlp(torch.cat([user.repeat(2, 1), item], -1)).view(2, -1)
        loss = -F.logsigmoid(scores[0] - scores[1]).mean()
        self.optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.parameters, 1.0)
        self.optimizer.step()
        return loss.detach()

    def rankings(self, users):
        first, *rest = self.model.score_mlp
        width = first.in_features // 2
        items = torch.arange(self.data.num_items)
        item_part = F.linear(self.side("item", items, self.cache[self.numbers["item"]]), first.weight[:, width:], first.bias)
        users = torch.tensor(users)
        user_part = F.linear(self.side("user", users, self.cache[self.numbers["user"][users]]), first.weight[:, :width])
        found = []
        for part in user_part.split(16):
            hidden = part[:, None] + item_part[None]
            for layer in rest:
                hidden = layer(hidden)
            found += torch.topk(hidden.squeeze(-1), TOP, -1).indices.tolist()
        return found


def train_and_evaluate(options):
    torch.manual_seed(1)
    torch.set_num_threads(options.threads)
    layers, width = map(int, options.gpt2_config.split("x"))
    data = Data(options.data_path)
    gpt2 = twin.small_gpt2(layers, width, vocabulary=END_OF_TEXT + 1, lora_dropout=0.1,
                           own_dropout=0.1 if options.way == "guide" else 0.0)
    model = twin.Recommender(data.num_users, data.num_items, gpt2, width, dropout=0.2).to(options.device)
    torch.set_default_device(options.device)
    if options.mode == "cached":
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.requires_grad_(False)
    side = {"guide": Guide, "vectorised": Vectorised}[options.way](model, data, read_tokenizer(options.tokenizer))
    report = {"step_seconds": [], "step_cpu_seconds": []}
    if options.mode == "cached":
        side.draw_cache() if options.drawn_cache else side.fill_cache()
    model.train()
    for _, batch in zip(range(options.steps), side.batches(options.batch_size)):
        began, began_cpu = time.perf_counter(), time.process_time()
        loss = side.step(*batch)
        synchronize(options.device)
        report["step_seconds"].append(time.perf_counter() - began)
        report["step_cpu_seconds"].append(time.process_time() - began_cpu)
        report["loss"] = float(loss)
    if options.eval_users:
        users = sorted(set(data.train[:, 0].tolist()))[:options.eval_users]
        model.eval()
        began, began_cpu = time.perf_counter(), time.process_time()
        with torch.no_grad():
            side.rankings(users)
            synchronize(options.device)
        report["user_seconds"] = (time.perf_counter() - began) / len(users)
        report["user_cpu_seconds"] = (time.process_time() - began_cpu) / len(users)
    report["rss_peak_mib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    report["gpu_peak_mib"] = torch.cuda.max_memory_reserved() / 2**20 if options.device == "cuda" else 0.0
    return report


def synchronize(device):
    if device == "cuda":
        torch.cuda.synchronize()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--way", choices=("guide", "vectorised"), required=True)
    parser.add_argument("--mode", choices=("cached", "dynamic"), required=True)
    parser.add_argument("--data_path", required=True, help="a folder as MovieLens-1M")
    parser.add_argument("--tokenizer", required=True, help="a folder: encoder.json, vocab.bpe")
    parser.add_argument("--gpt2_config", default="2x64")
    parser.add_argument("--batch_size", type=int, default=2048)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--eval_users", type=int, default=0, help="users to rank films for, with --mode cached")
    parser.add_argument("--drawn_cache", action="store_true", help="of vectors that no text has: a step takes as long")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    print(json.dumps(train_and_evaluate(parser.parse_args())))


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
