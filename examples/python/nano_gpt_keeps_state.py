"""nano_gpt.py, with the five lines that keep its state when a rank is lost, and without its own checkpoints.

    lockstep launch --nproc 3 examples/python/nano_gpt_keeps_state.py --steps 2000
    lockstep chaos kill-rank          # from another shell: the next step comes a moment later, and no loss changes

Under torchrun, and alone under python, it trains the same steps.
"""
import os

import torch
from torch import nn
from torch.nn import functional as F

import lockstep
from nano_gpt import GPT, batch_of, parse, read_text


def main():
    options = parse()
    lockstep.init_process_group()
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0))) if torch.cuda.is_available() else torch.device("cpu")
    torch.manual_seed(options.seed)
    model = lockstep.DistributedDataParallel(GPT(options.context, options.width, options.heads, options.layers).to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr)
    text_N = read_text(options.text)
    run = lockstep.restore(model=model, optimizer=optimizer)
    for step in run.steps(options.steps):
        inputs_BT, targets_BT = batch_of(text_N, step, run.rank, options, device)
        loss = F.cross_entropy(model(inputs_BT).flatten(0, 1), targets_BT.flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        run.log(loss=loss)
        if run.rank == 0 and (step + 1) % 20 == 0:
            print(f"step {step + 1}  loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
