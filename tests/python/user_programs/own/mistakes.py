"""Programs that the package `lockstep` refuses, each by name."""
import sys

import torch
import torch.distributed as dist
import torch.utils.checkpoint
from torch import nn

import lockstep

what = sys.argv[1]


def training(width=8):
    net = nn.Linear(width, 4)
    return lockstep.DistributedDataParallel(net), torch.optim.SGD(net.parameters(), lr=0.1)


if what == "not begun":
    training()
lockstep.init_process_group()
if what == "begun twice":
    lockstep.init_process_group()
elif what == "other model":
    training(width=8 if dist.get_rank() == 0 else 9)
elif what == "other number of models":
    nets = [training() for _ in range(1 if dist.get_rank() == 0 else 2)]
    lockstep.restore(model=nets[0][0])
elif what == "restored twice":
    model, optimizer = training()
    lockstep.restore(model=model)
    lockstep.restore(model=model)
elif what == "no state":
    lockstep.restore(data=[1, 2])
elif what == "unreadable state":
    class Odd:
        def state_dict(self):
            return {"x": object()}

        def load_state_dict(self, state):
            pass
    lockstep.restore(odd=Odd())
elif what == "new group":
    dist.new_group([0, 1])
elif what == "all to all":
    dist.all_to_all_single(torch.empty(4), torch.empty(4))
elif what == "reentrant":
    net = nn.Linear(8, 8)
    model = lockstep.DistributedDataParallel(nn.Sequential(nn.Linear(8, 8), net))
    lockstep.restore(model=model)
    hidden = model.module[0](torch.ones(2, 8))
    model(torch.ones(2, 8))
    (torch.utils.checkpoint.checkpoint(net, hidden, use_reentrant=True).sum() + net(hidden).sum()).backward()
