"""Reports its loss in each step and its accuracy in some, in calls of their own. It is asked to end."""
import torch

import lockstep

torch.set_num_threads(1)
lockstep.init_process_group()
torch.manual_seed(0)
model = lockstep.DistributedDataParallel(torch.nn.Linear(8, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
run = lockstep.restore(model=model, optimizer=optimizer)
for step in run.steps(1_000_000):
    loss = model(torch.full((2, 8), 1.0 + run.rank)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    run.log(loss=loss, lr=optimizer.param_groups[0]["lr"])
    if step % 5 == 0:
        run.log(accuracy=step / (step + 1000), eval_loss=loss)
