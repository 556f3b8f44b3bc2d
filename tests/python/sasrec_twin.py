"""SASRec in PyTorch: the oracle of the parity tests and the opponent of the benchmarks.

Written from the paper (Kang and McAuley, ICDM 2018) and the description of the published PyTorch implementation, with
that implementation's parameter names. Meant to be PyTorch as a good user writes it: nn.MultiheadAttention without its
weights, fused Adam, batches made with vectorised numpy in the main process (quicker here than worker processes: a
batch costs a fraction of a millisecond, and workers would send it through a pipe), DistributedDataParallel.

    python sasrec_twin.py --dataset ml-100k.inter --maxlen 50 --num_epochs 20
    torchrun --nproc_per_node=2 sasrec_twin.py --dataset …

Prints one JSON object at the end (rank 0): samples_per_second (training only), first_step_seconds (from the start of
the process, the end of the first step), rss_mib (resident now) and rss_peak_mib of rank 0, epoch_losses, metrics.
"""

import argparse
import json
import math
import os
import resource
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

FORMS = ("post", "pre", "original")


class PointWiseFeedForward(nn.Module):
    """Two convolutions of width 1, without the residual."""

    def __init__(self, hidden_units, dropout_rate):
        super().__init__()
        self.conv1 = nn.Conv1d(hidden_units, hidden_units, kernel_size=1)
        self.dropout1 = nn.Dropout(dropout_rate)
        self.relu = nn.ReLU()
        self.conv2 = nn.Conv1d(hidden_units, hidden_units, kernel_size=1)
        self.dropout2 = nn.Dropout(dropout_rate)

    def forward(self, x):
        x = self.relu(self.dropout1(F.linear(x, self.conv1.weight.squeeze(-1), self.conv1.bias)))
        return self.dropout2(F.linear(x, self.conv2.weight.squeeze(-1), self.conv2.bias))


class SASRec(nn.Module):
    def __init__(self, item_num, maxlen=50, hidden_units=50, num_blocks=2, num_heads=1, dropout_rate=0.2, form="post"):
        super().__init__()
        assert form in FORMS, form
        self.form = form
        self.scale = math.sqrt(hidden_units)
        self.item_emb = nn.Embedding(item_num + 1, hidden_units, padding_idx=0)
        self.pos_emb = nn.Embedding(maxlen + 1, hidden_units, padding_idx=0)
        self.emb_dropout = nn.Dropout(dropout_rate)
        self.attention_layernorms = nn.ModuleList()
        self.attention_layers = nn.ModuleList()
        self.forward_layernorms = nn.ModuleList()
        self.forward_layers = nn.ModuleList()
        self.last_layernorm = nn.LayerNorm(hidden_units, eps=1e-8)
        for _ in range(num_blocks):
            self.attention_layernorms.append(nn.LayerNorm(hidden_units, eps=1e-8))
            self.attention_layers.append(
                nn.MultiheadAttention(hidden_units, num_heads, dropout_rate, batch_first=True))
            self.forward_layernorms.append(nn.LayerNorm(hidden_units, eps=1e-8))
            self.forward_layers.append(PointWiseFeedForward(hidden_units, dropout_rate))
        self.register_buffer("causal_mask", torch.ones(maxlen, maxlen, dtype=torch.bool).triu(1), persistent=False)
        self.register_buffer("places", torch.arange(1, maxlen + 1), persistent=False)
        self.reset_parameters()

    def reset_parameters(self):
        for parameter in self.parameters():
            if parameter.dim() >= 2:
                nn.init.xavier_normal_(parameter)
        with torch.no_grad():
            self.item_emb.weight[0].zero_()
            self.pos_emb.weight[0].zero_()

    def attend(self, i, query, memory):
        return self.attention_layers[i](query, memory, memory, attn_mask=self.causal_mask, need_weights=False)[0]

    def encode(self, seq):
        used = seq != 0
        x = self.emb_dropout(self.item_emb(seq) * self.scale + self.pos_emb(self.places * used))
        for i, (norm1, norm2, feed_forward) in enumerate(
                zip(self.attention_layernorms, self.forward_layernorms, self.forward_layers)):
            if self.form == "post":
                x = norm1(x + self.attend(i, x, x))
                x = norm2(x + feed_forward(x))
            elif self.form == "pre":
                normed = norm1(x)
                x = x + self.attend(i, normed, normed)
                x = x + feed_forward(norm2(x))
            else:
                query = norm1(x)
                x = norm2(query + self.attend(i, query, x))
                x = (x + feed_forward(x)) * used.unsqueeze(-1)
        return self.last_layernorm(x)

    def forward(self, seq, pos, neg):
        h = self.encode(seq)
        return (h * self.item_emb(pos)).sum(-1), (h * self.item_emb(neg)).sum(-1)


def bce_loss(pos_logits, neg_logits, pos, reduction="mean"):
    used = pos != 0
    bce = nn.BCEWithLogitsLoss(reduction=reduction)
    positive = pos_logits[used]
    negative = neg_logits[used]
    return bce(positive, torch.ones_like(positive)) + bce(negative, torch.zeros_like(negative))


def take_a_few_steps(model, items, maxlen):
    """On random sequences: then biases and norms have other values than their initial ones, too."""
    seq, pos, neg = torch.randint(1, items + 1, (3, 16, maxlen))
    times = [torch.randint(1, 9, (16, maxlen)).cumsum(1)] if hasattr(model, "time_span") else []
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(5):
        optimizer.zero_grad()
        bce_loss(*model(seq, pos, neg, *times), pos).backward()
        optimizer.step()


def read_interactions(path, min_count=5):
    """Sequences of items per user, in time order, and the number of items."""
    sequences, _, item_num = read_events(path, min_count)
    return sequences, item_num


def read_events(path, min_count=5):
    """(items of each user in time order, their times or None, number of items). `user item` lines, or four columns, `::`, or
    RecBole's .inter."""
    users, items, times = [], [], []
    columns = None
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file):
            fields = line.rstrip("\n").split("::") if "::" in line else line.split()
            if number == 0 and ":" in fields[0] and "::" not in line:
                names = [field.split(":")[0] for field in fields]
                columns = (names.index("user_id"), names.index("item_id"), names.index("timestamp"))
                continue
            user, item, when = columns or (0, 1, 3)
            users.append(fields[user])
            items.append(fields[item])
            times.append(float(fields[when]) if len(fields) > when else None)
    if times[0] is None:
        sequences = [[] for _ in range(max(map(int, users)) + 1)]
        for user, item in zip(users, items):
            sequences[int(user)].append(int(item))
        return sequences, None, max(map(int, items))
    user_counts = {u: 0 for u in users}
    item_counts = {i: 0 for i in items}
    for user, item in zip(users, items):
        user_counts[user] += 1
        item_counts[item] += 1
    user_ids, item_ids, events = {}, {}, []
    for user, item, when in zip(users, items, times):
        if user_counts[user] >= min_count and item_counts[item] >= min_count:
            u = user_ids.setdefault(user, len(user_ids) + 1)
            i = item_ids.setdefault(item, len(item_ids) + 1)
            events.append((u, when, i))
    events.sort(key=lambda event: event[:2])  # stable: equal times keep the order of the file
    sequences, when_of = [[[] for _ in range(len(user_ids) + 1)] for _ in range(2)]
    for user, when, item in events:
        sequences[user].append(item)
        when_of[user].append(when)
    return sequences, when_of, len(item_ids)


def relative(times):
    """As TiSASRec counts them: from the user's first event, in the user's smallest gap; 0 is padding."""
    gap = min((b - a for a, b in zip(times, times[1:]) if b > a), default=1)
    return [round((when - times[0]) / gap) + 1 for when in times]


class Data:
    """Leave-one-out split, padded once into arrays so that a batch is an index operation."""

    def __init__(self, path, maxlen, has_times=False):
        sequences, times, self.item_num = read_events(path)
        self.user_num = len(sequences) - 1
        self.has_times = has_times  # TiSASRec's protocol: from three events on, held-out items are no candidates
        self.times = [relative(when) for when in times] if has_times else None
        events_min = 3 if has_times else 4
        self.train = [s if len(s) < events_min else s[:-2] for s in sequences]
        self.valid = [0 if len(s) < events_min else s[-2] for s in sequences]
        self.test = [0 if len(s) < events_min else s[-1] for s in sequences]
        self.evaluable = [u for u in range(1, self.user_num + 1) if self.test[u]]
        self.usable = np.array([u for u in range(1, self.user_num + 1) if len(self.train[u]) > 1])
        self.is_usable = np.zeros(self.user_num + 1, dtype=bool)
        self.is_usable[self.usable] = True
        self.seen = np.zeros((self.user_num + 1, self.item_num + 1), dtype=bool)
        self.seq = np.zeros((self.user_num + 1, maxlen), dtype=np.int64)
        self.pos = np.zeros((self.user_num + 1, maxlen), dtype=np.int64)
        self.maxlen = maxlen
        self.seq_times = np.zeros((self.user_num + 1, maxlen), dtype=np.int64)
        for user in range(1, self.user_num + 1):
            self.seen[user, self.train[user]] = True
            if has_times:
                self.right_align(self.times[user][:max(0, len(self.train[user]) - 1)], self.seq_times[user])
            self.right_align(self.train[user][:-1], self.seq[user])
            self.right_align(self.train[user][1:], self.pos[user])

    def right_align(self, items, row):
        items = items[-self.maxlen:]
        if items:
            row[-len(items):] = items

    def batch(self, users, rng):
        users = np.where(self.is_usable[users], users, rng.choice(self.usable, size=len(users)))
        neg = rng.integers(1, self.item_num + 1, size=(len(users), self.maxlen))
        rows = np.broadcast_to(users[:, None], neg.shape)
        while (bad := self.seen[rows, neg]).any():
            neg[bad] = rng.integers(1, self.item_num + 1, size=int(bad.sum()))
        pos = self.pos[users]
        neg[pos == 0] = 0
        batch = [torch.from_numpy(self.seq[users]), torch.from_numpy(pos), torch.from_numpy(neg)]
        return batch + [torch.from_numpy(self.seq_times[users])] if self.has_times else batch

    def avoided(self, users, is_test):
        """What no candidate may be: [users, items + 1]."""
        avoided = self.seen[users].copy()
        if self.has_times:
            avoided[np.arange(len(users)), [self.valid[user] for user in users]] = True
            if is_test:
                avoided[np.arange(len(users)), [self.test[user] for user in users]] = True
        return avoided


@torch.no_grad()
def evaluate(model, data, rng, users_at_once=256):
    """NDCG@10 and HR@10 of the held-out item among 100 random items that the user did not train on."""
    model.eval()
    metrics = {}
    for name, targets in (("valid", data.valid), ("test", data.test)):
        ndcg = hits = 0.0
        for begin in range(0, len(data.evaluable), users_at_once):
            users = data.evaluable[begin:begin + users_at_once]
            seq, times = np.zeros((2, len(users), data.maxlen), dtype=np.int64)
            for row, row_times, user in zip(seq, times, users):
                shown = data.train[user] + ([data.valid[user]] if name == "test" else [])
                data.right_align(shown, row)
                if data.has_times:
                    data.right_align(data.times[user][:len(shown)], row_times)
            candidates = rng.integers(1, data.item_num + 1, size=(len(users), 101))
            avoided = data.avoided(users, name == "test")
            rows = np.broadcast_to(np.arange(len(users))[:, None], candidates.shape)
            while (bad := avoided[rows, candidates]).any():
                candidates[bad] = rng.integers(1, data.item_num + 1, size=int(bad.sum()))
            candidates[:, 0] = [targets[user] for user in users]
            inputs = (seq, times) if data.has_times else (seq,)
            h = model.encode(*map(torch.from_numpy, inputs))[:, -1]
            scores = torch.einsum("bd,bcd->bc", h, model.item_emb(torch.from_numpy(candidates)))
            # Equal items get equal scores but for rounding: a drawn copy of the target is a tie, and ties favour it.
            scores[:, 1:][torch.from_numpy(candidates[:, 1:] == candidates[:, :1])] = -math.inf
            rank = (scores[:, 1:] > scores[:, :1]).sum(-1)
            hit = rank < 10
            hits += hit.sum().item()
            ndcg += (1.0 / torch.log2(rank[hit].double() + 2)).sum().item()
        metrics[f"{name}_ndcg@10"] = ndcg / max(len(data.evaluable), 1)
        metrics[f"{name}_hr@10"] = hits / max(len(data.evaluable), 1)
    model.train()
    return metrics


def seconds_since_process_start():
    with open("/proc/self/stat", encoding="utf-8") as file:
        start_ticks = int(file.read().rsplit(")", 1)[1].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - start_ticks / os.sysconf("SC_CLK_TCK")


def rss_mib():
    with open("/proc/self/statm", encoding="utf-8") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", required=True)
    parser.add_argument("--variant", choices=("sasrec", "tisasrec"), default="sasrec")
    parser.add_argument("--maxlen", type=int, default=50)
    parser.add_argument("--hidden_units", type=int, default=50)
    parser.add_argument("--num_blocks", type=int, default=2)
    parser.add_argument("--num_heads", type=int, default=1)
    parser.add_argument("--dropout_rate", type=float, default=0.2)
    parser.add_argument("--form", choices=FORMS, default="post")
    parser.add_argument("--num_epochs", type=int, default=20)
    parser.add_argument("--max_steps", type=int, default=0, help="0 = num_epochs decides")
    parser.add_argument("--batch_size", type=int, default=128, help="total, over all ranks")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--threads", type=int, default=1, help="of each rank")
    parser.add_argument("--print_losses", action="store_true", help="one line per step, waits for each loss")
    parser.add_argument("--no_evaluation", action="store_true")
    parser.add_argument("--checkpoint", help="rank 0 writes it here, all ranks go on from it")
    parser.add_argument("--checkpoint_every", type=int, default=200, help="steps")
    return parser.parse_args()


def train(args, model, data, rank, world_size):
    """Returns (samples per second, seconds to the first step, mean loss of each epoch)."""
    wrapped = nn.parallel.DistributedDataParallel(model) if world_size > 1 else model
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr, betas=(0.9, 0.98), fused=True)
    rng = np.random.default_rng([args.seed, rank])
    first_step_seconds = None
    samples = step = done = 0  # done: steps of the checkpoint that this process goes on from
    # Rank 0 reads it for all: the file may change between two ranks' looks at it.
    found = [torch.load(args.checkpoint) if rank == 0 and args.checkpoint and os.path.exists(args.checkpoint) else None]
    if world_size > 1:
        torch.distributed.broadcast_object_list(found, src=0)
    state = found[0]
    if state is not None:
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        done = state["step"]
        if rank == 0:
            print(f"resumed at step {done}", flush=True)
    epoch_losses = []
    start = time.perf_counter()
    for epoch in range(args.num_epochs):
        order = np.random.default_rng([args.seed, epoch, 1]).permutation(data.user_num) + 1
        losses = []
        for begin in range(0, data.user_num, args.batch_size):
            whole = order[begin:begin + args.batch_size]
            if args.max_steps and step >= args.max_steps:
                break
            if step < done:
                step += 1
                continue
            share = np.array_split(whole, world_size)[rank]
            if len(share) == 0:  # an idiomatic sampler pads: every rank takes part in every step
                share = whole[:1]
            batch = data.batch(share, rng)
            loss = bce_loss(*wrapped(*batch), batch[1])
            if args.variant == "tisasrec":
                loss = loss + model.penalty()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
            if first_step_seconds is None:
                first_step_seconds = seconds_since_process_start()
                start = time.perf_counter()  # the first step is start-up
            else:
                samples += len(whole)
            if args.print_losses and rank == 0:
                print(f"step {step} loss {loss.item():.7f}", flush=True)
            step += 1
            if args.checkpoint and rank == 0 and step % args.checkpoint_every == 0:
                torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step},
                           args.checkpoint + ".tmp")
                os.replace(args.checkpoint + ".tmp", args.checkpoint)
        if losses:
            epoch_losses.append(torch.stack(losses).mean().item())
        if args.max_steps and step >= args.max_steps:
            break
    return samples / (time.perf_counter() - start), first_step_seconds, epoch_losses


def main():
    args = parse_arguments()
    torch.set_num_threads(args.threads)
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    rank = int(os.environ.get("RANK", "0"))
    if world_size > 1:
        torch.distributed.init_process_group("gloo")
    torch.manual_seed(args.seed)
    data = Data(args.dataset, args.maxlen, has_times=args.variant == "tisasrec")
    shape = (data.item_num, args.maxlen, args.hidden_units, args.num_blocks, args.num_heads, args.dropout_rate)
    if args.variant == "tisasrec":
        from tisasrec_twin import TiSASRec  # which is made of parts of this file
        model = TiSASRec(*shape)
    else:
        model = SASRec(*shape, args.form)
    torch.manual_seed(args.seed * 1000 + rank)  # dropout differs between ranks, the initial weights do not
    samples_per_second, first_step_seconds, epoch_losses = train(args, model, data, rank, world_size)
    if rank == 0:
        report = {
            "samples_per_second": samples_per_second,
            "first_step_seconds": first_step_seconds,
            "rss_mib": rss_mib(),
            "rss_peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
            "epoch_losses": epoch_losses,
            "users": data.user_num,
            "items": data.item_num,
        }
        if not args.no_evaluation:
            report["metrics"] = evaluate(model, data, np.random.default_rng([args.seed, 2**20]))
        print(json.dumps(report), flush=True)
    if world_size > 1:
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
