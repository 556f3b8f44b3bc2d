"""TiSASRec in PyTorch: the oracle of the parity tests and the opponent of the benchmarks.

Written from the paper (Li, Wang and McAuley, WSDM 2020) and the description of the public PyTorch implementation, with that
implementation's parameter names: the rows of the time tables are gathered for each pair of positions, [B, T, T, D].
"""

import math

import torch
import torch.nn as nn

from sasrec_twin import PointWiseFeedForward

L2_EMB = 5e-5


class TimeAwareAttention(nn.Module):
    def __init__(self, hidden_units, num_heads, dropout_rate):
        super().__init__()
        self.num_heads = num_heads
        self.Q_w = nn.Linear(hidden_units, hidden_units)
        self.K_w = nn.Linear(hidden_units, hidden_units)
        self.V_w = nn.Linear(hidden_units, hidden_units)
        self.dropout = nn.Dropout(dropout_rate)

    def heads(self, x):
        """[…, T, D] → […, H, T, E], also of [B, T, T, D] → [B, H, T, T, E]"""
        x = x.unflatten(-1, (self.num_heads, -1))
        return x.movedim(-2, 1) if x.dim() > 3 else x.movedim(-2, 0)

    def forward(self, queries, memory, abs_k, abs_v, time_k, time_v, causal_mask):
        q = self.heads(self.Q_w(queries))
        k = self.heads(self.K_w(memory) + abs_k)
        v = self.heads(self.V_w(memory) + abs_v)
        scores = q @ k.transpose(-1, -2) + (self.heads(time_k) @ q.unsqueeze(-1)).squeeze(-1)
        scores = (scores / math.sqrt(q.size(-1))).masked_fill(causal_mask, -2**32 + 1)
        attention = self.dropout(scores.softmax(-1))
        out = attention @ v + (attention.unsqueeze(-2) @ self.heads(time_v)).squeeze(-2)
        return out.movedim(1, -2).flatten(-2)


class TiSASRec(nn.Module):
    def __init__(self, item_num, maxlen=50, hidden_units=50, num_blocks=2, num_heads=1, dropout_rate=0.2, time_span=256):
        super().__init__()
        self.scale = math.sqrt(hidden_units)
        self.time_span = time_span
        self.item_emb = nn.Embedding(item_num + 1, hidden_units, padding_idx=0)
        self.abs_pos_K_emb = nn.Embedding(maxlen, hidden_units)
        self.abs_pos_V_emb = nn.Embedding(maxlen, hidden_units)
        self.time_matrix_K_emb = nn.Embedding(time_span + 1, hidden_units)
        self.time_matrix_V_emb = nn.Embedding(time_span + 1, hidden_units)
        self.emb_dropout = nn.Dropout(dropout_rate)
        self.attention_layernorms = nn.ModuleList(nn.LayerNorm(hidden_units, eps=1e-8) for _ in range(num_blocks))
        self.attention_layers = nn.ModuleList(
            TimeAwareAttention(hidden_units, num_heads, dropout_rate) for _ in range(num_blocks))
        self.forward_layernorms = nn.ModuleList(nn.LayerNorm(hidden_units, eps=1e-8) for _ in range(num_blocks))
        self.forward_layers = nn.ModuleList(PointWiseFeedForward(hidden_units, dropout_rate) for _ in range(num_blocks))
        self.last_layernorm = nn.LayerNorm(hidden_units, eps=1e-8)
        self.register_buffer("causal_mask", torch.ones(maxlen, maxlen, dtype=torch.bool).triu(1), persistent=False)
        for parameter in self.parameters():
            if parameter.dim() >= 2:
                nn.init.xavier_uniform_(parameter)

    def encode(self, seq, times):
        used = (seq != 0).unsqueeze(-1)
        relations = (times.unsqueeze(2) - times.unsqueeze(1)).abs().clamp(max=self.time_span)
        drop = self.emb_dropout
        abs_k = drop(self.abs_pos_K_emb.weight.expand(len(seq), -1, -1))
        abs_v = drop(self.abs_pos_V_emb.weight.expand(len(seq), -1, -1))
        time_k = drop(self.time_matrix_K_emb(relations))
        time_v = drop(self.time_matrix_V_emb(relations))
        x = drop(self.item_emb(seq) * self.scale) * used
        for norm1, attention, norm2, feed_forward in zip(self.attention_layernorms, self.attention_layers,
                                                         self.forward_layernorms, self.forward_layers):
            query = norm1(x)
            x = norm2(query + attention(query, x, abs_k, abs_v, time_k, time_v, self.causal_mask))
            x = (x + feed_forward(x)) * used
        return self.last_layernorm(x)

    def forward(self, seq, pos, neg, times):
        h = self.encode(seq, times)
        return (h * self.item_emb(pos)).sum(-1), (h * self.item_emb(neg)).sum(-1)

    def penalty(self):
        tables = (self.item_emb, self.abs_pos_K_emb, self.abs_pos_V_emb, self.time_matrix_K_emb, self.time_matrix_V_emb)
        return L2_EMB * sum(table.weight.norm() for table in tables)
