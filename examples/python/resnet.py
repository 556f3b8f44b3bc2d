"""A ResNet that tells generated pictures apart, trained by PyTorch's DistributedDataParallel: a program that knows nothing of Lockstep.

    lockstep launch --nproc 2 examples/python/resnet.py --epochs 3
    torchrun --nproc_per_node 2 examples/python/resnet.py --epochs 3

Each picture is a grating in noise, and its class is the direction of the grating. The program writes a checkpoint after each epoch and
goes on from it when it is started again, so a lost rank costs an epoch at most. The same seed gives the same losses, whatever
starts it.
"""
import argparse
import math
import os
import pathlib

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

NUM_CLASSES = 8


class Gratings(Dataset):
    """A picture follows from the seed and its number, so that all ranks and workers draw the same one."""

    def __init__(self, size, side, seed):
        self.size, self.side, self.seed = size, side, seed

    def __len__(self):
        return self.size

    def __getitem__(self, number):
        draw = torch.Generator().manual_seed(self.seed * 1_000_003 + number)
        label = int(torch.randint(NUM_CLASSES, (), generator=draw))
        phase, waves = torch.rand(2, generator=draw).tolist()
        angle = math.pi * label / NUM_CLASSES
        y_HW, x_HW = torch.meshgrid(*[torch.linspace(-1, 1, self.side)] * 2, indexing="ij")
        grating_HW = torch.sin((4 + 8 * waves) * (math.cos(angle) * x_HW + math.sin(angle) * y_HW) + 2 * math.pi * phase)
        return grating_HW.expand(3, -1, -1) + 0.5 * torch.randn(3, self.side, self.side, generator=draw), label


class Block(nn.Module):
    def __init__(self, width_in, width, stride):
        super().__init__()
        self.first = nn.Conv2d(width_in, width, 3, stride, padding=1, bias=False)
        self.norm_first = nn.BatchNorm2d(width)
        self.second = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm_second = nn.BatchNorm2d(width)
        self.skip = nn.Identity()
        if width_in != width:
            self.skip = nn.Sequential(nn.Conv2d(width_in, width, 1, stride, bias=False), nn.BatchNorm2d(width))

    def forward(self, x_BCHW):
        y_BCHW = F.relu(self.norm_first(self.first(x_BCHW)))
        return F.relu(self.norm_second(self.second(y_BCHW)) + self.skip(x_BCHW))


class ResNet(nn.Module):
    """Three stages, each with half the side and twice the width of the one before."""

    def __init__(self, width, blocks):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU())
        widths = [width, 2 * width, 4 * width]
        self.stages = nn.Sequential(*[
            Block(widths[max(0, stage - 1)] if block == 0 else widths[stage], widths[stage], 2 if stage > 0 and block == 0 else 1)
            for stage in range(3) for block in range(blocks)])
        self.head = nn.Linear(widths[-1], NUM_CLASSES)

    def forward(self, x_BCHW):
        return self.head(self.stages(self.stem(x_BCHW)).mean((2, 3)))


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=pathlib.Path, default=pathlib.Path("resnet"), help="for the checkpoint")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--pictures", type=int, default=2048, help="of an epoch")
    parser.add_argument("--side", type=int, default=16, help="pixels")
    parser.add_argument("--batch_size", type=int, default=32, help="of each rank")
    parser.add_argument("--width", type=int, default=8)
    parser.add_argument("--blocks", type=int, default=1, help="of each of the three stages")
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--workers", type=int, default=1, help="processes of each rank that draw the pictures")
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


@torch.no_grad()
def accuracy(model, loader, device):
    """The share of right answers, over the pictures of all ranks."""
    model.eval()
    counts = torch.zeros(2, device=device)
    for pictures_BCHW, labels_B in loader:
        answers_B = model(pictures_BCHW.to(device)).argmax(1)
        counts += torch.stack([(answers_B == labels_B.to(device)).sum(), torch.tensor(len(labels_B), device=device)])
    dist.all_reduce(counts)
    model.train()
    return (counts[0] / counts[1]).item()


def main():
    options = parse()
    on_gpu = torch.cuda.is_available()
    dist.init_process_group("nccl" if on_gpu else "gloo")
    rank = dist.get_rank()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    torch.manual_seed(options.seed)
    data = Gratings(options.pictures, options.side, options.seed)
    held_out = Gratings(options.pictures // 8, options.side, options.seed + 1)
    sampler = DistributedSampler(data, seed=options.seed, drop_last=True)
    loader = DataLoader(data, options.batch_size, sampler=sampler, num_workers=options.workers, drop_last=True)
    test_loader = DataLoader(held_out, options.batch_size, sampler=DistributedSampler(held_out, shuffle=False))
    model = nn.parallel.DistributedDataParallel(ResNet(options.width, options.blocks).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=options.lr, momentum=0.9, weight_decay=5e-4)

    checkpoint = options.folder / "checkpoint.pt"
    first = 0
    if checkpoint.exists():
        saved = torch.load(checkpoint, map_location=device)
        model.module.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        first = saved["epochs"]
        if rank == 0:
            print(f"going on from epoch {first}", flush=True)
    options.folder.mkdir(parents=True, exist_ok=True)

    for epoch in range(first, options.epochs):
        sampler.set_epoch(epoch)
        for group in optimizer.param_groups:
            group["lr"] = options.lr * 0.5 * (1 + math.cos(math.pi * epoch / options.epochs))
        for pictures_BCHW, labels_B in loader:
            loss = F.cross_entropy(model(pictures_BCHW.to(device)), labels_B.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        right = accuracy(model, test_loader, device)
        if rank == 0:
            print(f"epoch {epoch + 1}  loss {loss.item():.4f}  accuracy {right:.3f}", flush=True)
            torch.save({"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "epochs": epoch + 1},
                       f"{checkpoint}.new")
            os.replace(f"{checkpoint}.new", checkpoint)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
