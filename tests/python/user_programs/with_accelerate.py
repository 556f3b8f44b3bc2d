"""A program that knows nothing of Lockstep, written with Hugging Face's Accelerate: gradient accumulation, a schedule, clipping, its
checkpoints. Each rank writes its losses with all digits into losses-RANK.txt of --folder."""
import argparse
import pathlib

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--folder", type=pathlib.Path, required=True)
parser.add_argument("--epochs", type=int, default=2)
options = parser.parse_args()

accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
set_seed(7)
draw = torch.Generator().manual_seed(5)
data = TensorDataset(torch.randn(64, 16, generator=draw), torch.randint(4, (64,), generator=draw))
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Dropout(0.1), torch.nn.Linear(32, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 4, gamma=0.5)
loader = DataLoader(data, batch_size=4, shuffle=True)
model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
step = 0
with open(options.folder / f"losses-{accelerator.process_index}.txt", "w") as losses:
    for epoch in range(options.epochs):
        for x, y in loader:
            with accelerator.accumulate(model):
                loss = torch.nn.functional.cross_entropy(model(x), y)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
            print(step, repr(loss.item()), repr(accelerator.gather(loss).mean().item()), file=losses)
            step += 1
accelerator.save_state(options.folder / "state")
accelerator.end_training()
