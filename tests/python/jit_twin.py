"""JiT (Li and He, 2025) in PyTorch, written from its description: what runner/models/jit is compared with. State dicts have
the published code's names."""
import math

import torch
from torch import nn


class RMSNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return self.weight * x / torch.sqrt((x * x).mean(-1, keepdim=True) + 1e-6)


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.q_norm, self.k_norm = RMSNorm(width // heads), RMSNorm(width // heads)

    def forward(self, x, angles):
        b, n, d = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)

        def turn(a):
            """Each pair of neighbours is turned by its angle, as a complex number."""
            pairs = torch.view_as_complex(a.reshape(*a.shape[:-1], -1, 2).contiguous())
            return torch.view_as_real(pairs * torch.polar(torch.ones_like(angles), angles)).flatten(-2)

        q, k = turn(self.q_norm(q)), turn(self.k_norm(k))
        weights = torch.softmax(q @ k.transpose(-1, -2) / math.sqrt(d // self.heads), -1)
        return self.proj((weights @ v).transpose(1, 2).reshape(b, n, d))


class SwiGLU(nn.Module):
    def __init__(self, width):
        super().__init__()
        hidden = int(width * 4 * 2 / 3)
        self.w12, self.w3 = nn.Linear(width, 2 * hidden), nn.Linear(hidden, width)

    def forward(self, x):
        gate, value = self.w12(x).chunk(2, -1)
        return self.w3(nn.functional.silu(gate) * value)


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.norm1, self.attn, self.norm2, self.mlp = RMSNorm(width), Attention(width, heads), RMSNorm(width), SwiGLU(width)
        self.adaLN_modulation = nn.Sequential(nn.SiLU(), nn.Linear(width, 6 * width))

    def forward(self, x, condition, angles):
        shift1, scale1, gate1, shift2, scale2, gate2 = self.adaLN_modulation(condition)[:, None].chunk(6, -1)
        x = x + gate1 * self.attn(self.norm1(x) * (1 + scale1) + shift1, angles)
        return x + gate2 * self.mlp(self.norm2(x) * (1 + scale2) + shift2)


class FinalLayer(nn.Module):
    def __init__(self, width, values):
        super().__init__()
        self.norm_final, self.linear = RMSNorm(width), nn.Linear(width, values)
        self.adaLN_modulation = nn.Sequential(nn.SiLU(), nn.Linear(width, 2 * width))

    def forward(self, x, condition):
        shift, scale = self.adaLN_modulation(condition)[:, None].chunk(2, -1)
        return self.linear(self.norm_final(x) * (1 + scale) + shift)


class Embedder(nn.Module):
    """A container for what the published code names so."""


class Net(nn.Module):
    def __init__(self, side, patch, classes, depth, width, heads, bottleneck, context_start, context_tokens=32):
        super().__init__()
        self.side, self.patch, self.context_start, self.context_tokens = side, patch, context_start, context_tokens
        self.x_embedder, self.t_embedder, self.y_embedder = Embedder(), Embedder(), Embedder()
        self.x_embedder.proj1 = nn.Conv2d(3, bottleneck, patch, patch, bias=False)
        self.x_embedder.proj2 = nn.Conv2d(bottleneck, width, 1)
        self.t_embedder.mlp = nn.Sequential(nn.Linear(256, width), nn.SiLU(), nn.Linear(width, width))
        self.y_embedder.embedding_table = nn.Embedding(classes + 1, width)
        self.in_context_posemb = nn.Parameter(torch.zeros(1, context_tokens, width))
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.final_layer = FinalLayer(width, patch * patch * 3)
        self.width, self.heads = width, heads

    def positions(self):
        """[patches, width]: half for the column, half for the row."""
        grid = self.side // self.patch
        quarter = self.width // 4
        rows = []
        for row in range(grid):
            for column in range(grid):
                values = []
                for place in (column, row):
                    angles = [place / 10000 ** (k / quarter) for k in range(quarter)]
                    values += [math.sin(a) for a in angles] + [math.cos(a) for a in angles]
                rows.append(values)
        return torch.tensor(rows)

    def angles(self):
        """[patches, head / 2]: a quarter of a head's pairs for the row, a quarter for the column."""
        grid = self.side // self.patch
        quarter = self.width // self.heads // 4
        return torch.tensor([[place / 10000 ** (k / quarter) for place in (row, column) for k in range(quarter)]
                             for row in range(grid) for column in range(grid)])

    def forward(self, z, t, classes):
        frequencies = torch.tensor([10000 ** (-k / 128) for k in range(128)], device=t.device)
        phases = t[:, None] * frequencies
        of_class = self.y_embedder.embedding_table(classes)
        condition = self.t_embedder.mlp(torch.cat([phases.cos(), phases.sin()], 1)) + of_class
        x = self.x_embedder.proj2(self.x_embedder.proj1(z)).flatten(2).transpose(1, 2) + self.positions()
        angles = self.angles()
        for number, block in enumerate(self.blocks):
            if number == self.context_start:
                x = torch.cat([of_class[:, None] + self.in_context_posemb, x], 1)
                angles = torch.cat([torch.zeros(self.context_tokens, angles.shape[1], device=angles.device), angles])
            x = block(x, condition, angles)
        x = self.final_layer(x[:, self.context_tokens:], condition)
        grid = self.side // self.patch
        x = x.view(-1, grid, grid, self.patch, self.patch, 3)
        return torch.einsum("nhwpqc->nchpwq", x).reshape(-1, 3, self.side, self.side)


class JiT(nn.Module):
    def __init__(self, *shape):
        super().__init__()
        self.net = Net(*shape)

    def forward(self, z, t, classes):
        return self.net(z, t, classes)

    @torch.no_grad()
    def sample(self, noise, classes, none, steps, guidance, t_eps=0.05):
        """Heun's method, Euler's in the last step; guidance where 0.1 < t < 1."""
        def velocity(z, t):
            def of(which):
                return (self(z, torch.full((len(z),), t), which) - z) / max(1 - t, t_eps)
            if not 0.1 < t < 1:
                return of(classes)
            free = of(torch.full_like(classes, none))
            return free + guidance * (of(classes) - free)

        z = noise
        for step in range(steps):
            t, after = step / steps, (step + 1) / steps
            v = velocity(z, t)
            if after < 1:
                v = (v + velocity(z + (after - t) * v, after)) / 2
            z = z + (after - t) * v
        return z.clamp(-1, 1)
