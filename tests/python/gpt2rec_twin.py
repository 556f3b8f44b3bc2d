"""The guide's recommender in PyTorch, and our split, negatives and evaluation in NumPy.

The module has all of the guide's tensors, those that change nothing among them: what loads into it strictly is complete.
"""
import numpy
import torch
from torch import nn

MASK32 = 0xFFFFFFFF
ORDER, NEGATIVES = 1, 3  # RandomPurpose


# --- draws


def philox_block(seed, place, step, sample, block):
    counter = [block & MASK32, sample & MASK32, step & MASK32, place]
    key = [seed & MASK32, seed >> 32]
    for _ in range(10):
        first, second = 0xD2511F53 * counter[0], 0xCD9E8D57 * counter[2]
        counter = [(second >> 32) ^ counter[1] ^ key[0], second & MASK32, (first >> 32) ^ counter[3] ^ key[1], first & MASK32]
        key = [(key[0] + 0x9E3779B9) & MASK32, (key[1] + 0xBB67AE85) & MASK32]
    return counter


def epoch_order(seed, epoch, count):
    order = list(range(count))
    for draw, left in enumerate(range(count, 1, -1)):
        word = philox_block(seed, ORDER, epoch, 0, draw // 4)[draw % 4]
        picked = (word * left) >> 32
        order[left - 1], order[picked] = order[picked], order[left - 1]
    return order


def split(ratings, ratio, seed):
    """Lists of (user, film): train, valid, test; pandas' ranges include their end."""
    shuffled = [ratings[row] for row in epoch_order(seed, -1, len(ratings))]
    train_end = int(ratio[0] * len(ratings))
    valid_end = train_end + int(ratio[1] * len(ratings)) + 1
    train = shuffled[:train_end]
    users = {user for user, _ in train}
    return train, *([pair for pair in part if pair[0] in users] for part in (shuffled[train_end:valid_end], shuffled[valid_end:]))


def static_negatives(train, seed):
    films = sorted({film for _, film in train})
    seen = {}
    for user, film in train:
        seen.setdefault(user, set()).add(film)
    negatives = []
    for sample, (user, _) in enumerate(train):
        for draw in range(64):
            film = films[(philox_block(seed, NEGATIVES, 0, sample, draw // 4)[draw % 4] * len(films)) >> 32]
            if film not in seen[user]:
                break
        assert film not in seen[user]
        negatives.append(film)
    return negatives


# --- the model


class Fusion(nn.Module):
    """Attention with a single key: its softmax is 1."""

    def __init__(self, width):
        super().__init__()
        self.id_q, self.id_k, self.id_v = (nn.Linear(width, width) for _ in range(3))
        self.meta_q, self.meta_k, self.meta_v = (nn.Linear(width, width) for _ in range(3))
        self.out_proj = nn.Linear(2 * width, width)
        self.norm = nn.LayerNorm(width)

    def forward(self, of_id, of_text):
        batch, width = of_id.shape
        heads = [layer(x).view(batch, 4, 1, width // 4) for layer, x in
                 ((self.id_q, of_id), (self.meta_k, of_text), (self.meta_v, of_text))]
        weights = (heads[0] @ heads[1].transpose(-1, -2) / (width // 4) ** 0.5).softmax(-1)
        attended = (weights @ heads[2]).reshape(batch, width)
        return self.norm(self.out_proj(torch.cat([of_id, attended], 1)) + of_id)


class Recommender(nn.Module):
    """`gpt2`: a GPT2LMHeadModel with LoRA (peft), as the guide wraps it."""

    def __init__(self, users, films, gpt2, text_width, width=64, use_attention=True, dropout=0.0):
        super().__init__()
        self.gpt2 = gpt2
        self.user_emb, self.item_emb = nn.Embedding(users, width), nn.Embedding(films, width)
        self.user_meta_proj, self.item_meta_proj = nn.Linear(text_width, width), nn.Linear(text_width, width)
        self.use_attention = use_attention
        if use_attention:
            self.user_fusion, self.item_fusion = Fusion(width), Fusion(width)
        side = width if use_attention else 2 * width
        self.score_mlp = nn.Sequential(nn.Linear(2 * side, 128), nn.ReLU(), nn.Dropout(dropout), nn.Linear(128, 64),
                                       nn.ReLU(), nn.Dropout(dropout), nn.Linear(64, 1))
        self.contrastive_proj = nn.Sequential(nn.Linear(2 * width, width), nn.ReLU(), nn.Linear(width, 32))

    def encode(self, texts, tokenize, pad):
        """One text at a time, so that there is no padding."""
        vectors = []
        for text in texts:
            tokens = torch.tensor([tokenize(text)[:128] or [pad]])
            hidden = self.gpt2(tokens, output_hidden_states=True).hidden_states[-1]
            vectors.append(hidden.mean(1))
        return torch.cat(vectors)

    def encode_padded(self, texts, tokenize, pad, at_once=32):
        """As the guide does: so many texts padded to the longest of them, and the mean over the padding too."""
        vectors = []
        for begin in range(0, len(texts), at_once):
            rows = [tokenize(text)[:128] or [pad] for text in texts[begin:begin + at_once]]
            longest = max(map(len, rows))
            tokens = torch.tensor([row + [pad] * (longest - len(row)) for row in rows])
            mask = torch.arange(longest) < torch.tensor([[len(row)] for row in rows])
            hidden = self.gpt2(tokens, attention_mask=mask.long(), output_hidden_states=True).hidden_states[-1]
            vectors.append(hidden.mean(1))
        return torch.cat(vectors)

    def side(self, kind, ids, vectors):
        of_id = getattr(self, f"{kind}_emb")(ids)
        of_text = getattr(self, f"{kind}_meta_proj")(vectors)
        if self.use_attention:
            return getattr(self, f"{kind}_fusion")(of_id, of_text)
        return torch.cat([of_id, of_text], 1)

    def score(self, users, films):
        return self.score_mlp(torch.cat([users, films], -1)).squeeze(-1)


def small_gpt2(layers, width, vocabulary=257, context=1024, rank=8, alpha=32, lora_dropout=0.0, own_dropout=0.0):
    from peft import LoraConfig, get_peft_model
    from transformers import GPT2Config, GPT2LMHeadModel
    made = GPT2LMHeadModel(GPT2Config(n_layer=layers, n_embd=width, n_head=max(1, width // 64), vocab_size=vocabulary,
                                      n_positions=context, resid_pdrop=own_dropout, embd_pdrop=own_dropout, attn_pdrop=own_dropout,
                                      bos_token_id=vocabulary - 1, eos_token_id=vocabulary - 1))
    return get_peft_model(made, LoraConfig(r=rank, lora_alpha=alpha, lora_dropout=lora_dropout, fan_in_fan_out=True,
                                           target_modules=["c_attn", "c_proj"], task_type="CAUSAL_LM"))


def bpr(rated, other):
    return -torch.log(torch.sigmoid(rated - other) + 1e-10).mean()


# --- the evaluations


def ndcg(ranking, wanted, k):
    gained = sum(1 / numpy.log2(place + 2) for place, film in enumerate(ranking[:k]) if film in wanted)
    return gained / sum(1 / numpy.log2(place + 2) for place in range(min(k, len(wanted))))


def evaluate(scores, train, valid, test):
    """`scores` [users, films]. The figures by their names."""
    def by_user(part):
        films = {}
        for user, film in part:
            films.setdefault(user, set()).add(film)
        return films

    trained, validated, tested = by_user(train), by_user(valid), by_user(test)
    figures = {}

    def add(name, value):
        figures.setdefault(name, []).append(value)

    for user, wanted in validated.items():
        ranking = list(numpy.argsort(-scores[user], kind="stable"))
        for k in (10, 20, 50):
            add(f"valid_ndcg@{k}", ndcg(ranking, wanted, k))
            add(f"valid_hr@{k}", float(bool(wanted & set(ranking[:k]))))
    for user, wanted in tested.items():
        known = trained.get(user, set()) | validated.get(user, set())
        ranking = [film for film in numpy.argsort(-scores[user], kind="stable") if film not in known]
        for k in (10, 20, 50):
            hits = len(wanted & set(ranking[:k]))
            add(f"test_recall@{k}", hits / len(wanted))
            add(f"test_precision@{k}", hits / k)
            add(f"test_ndcg@{k}", ndcg(ranking, wanted, k))
    return {name: numpy.mean(values) for name, values in figures.items()}
