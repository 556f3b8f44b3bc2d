"""The guide's masked side-chain model in plain PyTorch: the oracle of test_mdm.py.

Written from the description of that model (its encoder, decoder, sizes, features), with the names that its parts have
here as torch modules. It takes one protein at a time through the encoder, edge by edge, as a reader would write it down.
"""
import math

import torch
import torch.nn.functional as F
from torch import nn

PAD, MASK = 0, 1
FRAGMENTS, BINS, NEIGHBOURS, BASES = 16, 72, 30, 32
# Of each amino acid, from CA outwards.
SIDE_CHAINS = {"A": [4], "V": [15, 4, 4], "L": [5, 15, 4, 4], "I": [5, 15, 4, 5, 4], "M": [5, 5, 14, 4], "F": [5, 7],
               "Y": [5, 7, 6], "W": [5, 13], "S": [6], "T": [15, 6, 4], "N": [5, 10], "Q": [5, 5, 10], "K": [5, 5, 5, 5, 8],
               "R": [5, 5, 5, 11], "H": [5, 12], "D": [5, 9], "E": [5, 5, 9], "C": [14], "G": [], "P": [5, 5, 5]}


def dihedral(a, b, c, d):
    first, second = torch.linalg.cross(b - a, c - b), torch.linalg.cross(c - b, d - c)
    axis = F.normalize(c - b, dim=-1)
    return torch.atan2((torch.linalg.cross(first, second) * axis).sum(-1), (first * second).sum(-1))


def dihedral_features(backbone):
    """[L, 4, 3] → sines and cosines of φ, ψ, ω. At the ends the residue's own atoms stand for the missing ones."""
    angles = []
    for i, (n, ca, c, _) in enumerate(backbone):
        last_c = backbone[i - 1, 2] if i > 0 else c
        next_n, next_ca = (backbone[i + 1, 0], backbone[i + 1, 1]) if i + 1 < len(backbone) else (n, ca)
        angles.append(torch.stack([dihedral(last_c, n, ca, c), dihedral(n, ca, c, next_n), dihedral(ca, c, next_n, next_ca)]))
    angles = torch.stack(angles)
    return torch.cat([angles.sin(), angles.cos()], -1)


def graph(ca):
    """Edges from each residue (row 0) to its nearest ones (row 1), and their features."""
    distance = torch.cdist(ca, ca, compute_mode="donot_use_mm_for_euclid_dist").fill_diagonal_(math.inf)
    near = distance.topk(min(NEIGHBOURS, len(ca) - 1), largest=False).indices
    rows = torch.stack([torch.arange(len(ca)).repeat_interleave(near.shape[1]), near.flatten()])
    way = ca[rows[1]] - ca[rows[0]]
    length = way.norm(dim=-1, keepdim=True)
    bases = torch.exp(-0.5 * ((length - torch.linspace(0, 20, BASES)) / (20 / BASES)) ** 2)
    return rows, torch.cat([bases, way / length], -1)


def perceptron(inputs, width, dropout):
    return nn.Sequential(nn.Linear(inputs, width), nn.LayerNorm(width), nn.ReLU(), nn.Dropout(dropout), nn.Linear(width, width))


class EncoderLayer(nn.Module):
    def __init__(self, width, dropout):
        super().__init__()
        self.message = perceptron(width + BASES + 3, width, dropout)
        self.update = perceptron(2 * width, width, dropout)
        self.norm = nn.LayerNorm(width)

    def forward(self, nodes, rows, edges):
        messages = self.message(torch.cat([nodes[rows[0]], edges], -1))
        heard = torch.zeros_like(nodes).index_add(0, rows[1], messages)
        return self.norm(self.update(torch.cat([nodes, heard], -1)) + nodes)


class Encoder(nn.Module):
    def __init__(self, width=256, layers=3, dropout=0.1):
        super().__init__()
        self.dihedral_embed = nn.Linear(6, 64)
        self.node_embed = nn.Linear(64, width)
        self.layers = nn.ModuleList(EncoderLayer(width, dropout) for _ in range(layers))

    def forward(self, backbone):
        nodes = self.node_embed(self.dihedral_embed(dihedral_features(backbone)))
        rows, edges = graph(backbone[:, 1])
        for layer in self.layers:
            nodes = layer(nodes, rows, edges)
        return nodes


def head(width, outputs, dropout):
    return nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.GELU(), nn.Dropout(dropout), nn.Linear(width, outputs))


class Decoder(nn.Module):
    def __init__(self, width=256, layers=3, heads=8, dropout=0.1):
        super().__init__()
        self.fragment_embed = nn.Embedding(FRAGMENTS, width)
        self.encoder_proj = nn.Linear(width, width)
        layer = nn.TransformerDecoderLayer(width, heads, 4 * width, dropout, activation="gelu", batch_first=True)
        self.transformer = nn.TransformerDecoder(layer, layers)
        self.fragment_head = head(width, FRAGMENTS, dropout)
        self.torsion_head = head(width, BINS, dropout)

    def forward(self, tokens, nodes, is_residue):
        hidden = self.fragment_embed(tokens)
        length, width = hidden.shape[1:]
        places = torch.arange(length)[:, None] * torch.exp(torch.arange(0, width, 2) * (-math.log(10000.0) / width))
        waves = torch.zeros(length, width)
        waves[:, 0::2], waves[:, 1::2] = places.sin(), places.cos()
        hidden = self.transformer(hidden + waves, self.encoder_proj(nodes), tgt_key_padding_mask=tokens == PAD,
                                  memory_key_padding_mask=~is_residue)
        return self.fragment_head(hidden), self.torsion_head(hidden)


class Mdm(nn.Module):
    def __init__(self, dropout=0.1):
        super().__init__()
        self.encoder = Encoder(dropout=dropout)
        self.decoder = Decoder(dropout=dropout)

    def forward(self, backbones, tokens):
        """backbones: [L, 4, 3] of each protein; tokens: [B, M]."""
        nodes = nn.utils.rnn.pad_sequence([self.encoder(backbone) for backbone in backbones], batch_first=True)
        lengths = torch.tensor([len(backbone) for backbone in backbones])
        return self.decoder(tokens, nodes, torch.arange(nodes.shape[1]) < lengths[:, None])
