"""What torch's DistributedDataParallel has, as JSON: its arguments, attributes and public methods. For any version of torch."""
import inspect
import json

import torch
import torch.distributed as dist

Torchs = torch.nn.parallel.DistributedDataParallel
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
model = Torchs(net)
model(torch.ones(2, 4)).sum().backward()
public = {name: value for kind in Torchs.__mro__ if not issubclass(torch.nn.Module, kind) for name, value in vars(kind).items() if name[0] != "_"}
print(json.dumps({
    "argument": [name for name in inspect.signature(Torchs.__init__).parameters if name != "self"],
    "attribute": sorted({name for name in vars(model) if name[0] != "_"} - set(vars(torch.nn.Module())) | {"module"}
                        | {name for name, value in public.items() if isinstance(value, property)}),
    "method": sorted(name for name, value in public.items() if callable(value)),
}), flush=True)
del model
dist.destroy_process_group()
