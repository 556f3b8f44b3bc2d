"""The guide's variant of JiT for texts as images in PyTorch, written from its description: what runner/models/jit/pixel_dlm_*
is compared with. It computes the 256 patches of the condition, which nothing hears where there is none. State dicts have the
guide's names."""
import math

import torch
from torch import nn

CONDITION_GRID = 16


class RMSNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return self.weight * x / x.square().mean(-1, keepdim=True).sqrt().clamp_min(1e-6)


class AdaptiveNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = RMSNorm(width)
        self.scale_mlp = nn.Sequential(nn.SiLU(), nn.Linear(width, width))
        self.shift_mlp = nn.Sequential(nn.SiLU(), nn.Linear(width, width))

    def forward(self, x, condition):
        scale = (1 + self.scale_mlp(condition)).clamp(0.1, 10)
        return self.norm(x) * scale[:, None] + self.shift_mlp(condition)[:, None]


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv, self.proj = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width)

    def forward(self, x, is_heard):
        b, n, d = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-1, -2) / math.sqrt(d // self.heads)
        # If no patch is filled, all attend uniformly.
        scores = scores.masked_fill(~is_heard[:, None, None], -math.inf)
        scores = torch.where(is_heard.any(1)[:, None, None, None], scores, torch.zeros_like(scores))
        return self.proj((scores.softmax(-1) @ v).transpose(1, 2).reshape(b, n, d))


class Gate(nn.Module):
    def forward(self, x):
        gate, value = x.chunk(2, -1)
        return nn.functional.silu(gate) * value


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.attn = Attention(width, heads)
        self.mlp = nn.Sequential(nn.Linear(width, 8 * width), Gate(), nn.Identity(), nn.Linear(4 * width, width))
        self.adaLN = AdaptiveNorm(width)

    def forward(self, x, condition, is_heard):
        x = x + self.attn(self.adaLN(x, condition), is_heard)
        return x + self.mlp(self.adaLN(x, condition))


class Times(nn.Module):
    def __init__(self, width):
        super().__init__()
        half = width // 2
        self.register_buffer("emb", torch.exp(torch.arange(half) * (-math.log(10000) / (half - 1))))

    def forward(self, t):
        angles = t.float()[:, None] * self.emb
        return torch.cat([angles.sin(), angles.cos()], 1)


class PixelDlm(nn.Module):
    def __init__(self, side, patch, depth, width, heads):
        super().__init__()
        self.patch, self.grid, values = patch, side // patch, 3 * patch * patch
        self.pos_embed_h = nn.Parameter(torch.zeros(1, self.grid, width))
        self.pos_embed_w = nn.Parameter(torch.zeros(1, self.grid, width))
        self.cond_pos_embed_h = nn.Parameter(torch.zeros(1, CONDITION_GRID, width))
        self.cond_pos_embed_w = nn.Parameter(torch.zeros(1, CONDITION_GRID, width))
        self.patch_embed = nn.Linear(values, width, bias=False)
        self.time_embed = Times(width)
        self.condition_embed = nn.Linear(values, width, bias=False)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.output_proj = nn.Linear(width, values)

    def filled(self, is_token):
        """[B, patches]: more than half of a patch's pixels hold a token."""
        patches = is_token.float().unfold(1, self.patch, self.patch).unfold(2, self.patch, self.patch)
        return (patches.mean((3, 4)) > 0.5).flatten(1)

    def forward(self, z, t, is_token):
        b, width = len(z), self.pos_embed_h.shape[2]
        filled, hidden = self.filled(is_token), torch.zeros(b, CONDITION_GRID ** 2)
        patches = nn.functional.unfold(z, self.patch, stride=self.patch).transpose(1, 2)
        places = (self.pos_embed_h[0][:, None] + self.pos_embed_w[0][None]).flatten(0, 1)
        x = torch.cat([hidden[..., None].expand(-1, -1, width), self.patch_embed(patches) + places], 1)
        is_heard, condition = torch.cat([hidden.bool(), filled], 1), self.time_embed(t)
        for block in self.blocks:
            x = block(x, condition, is_heard)
        x = self.output_proj(x[:, CONDITION_GRID ** 2:]) * filled[..., None]
        return nn.functional.fold(x.transpose(1, 2), z.shape[2:], self.patch, stride=self.patch)


def loss_of(predicted, image, is_token):
    """Each pixel counts once for its three channels."""
    return ((predicted.clamp(0, 1) - image).square() * is_token[:, None]).sum() / is_token.sum()
