"""Calls each collective of torch.distributed that this version of torch has, and says of each whether it is done or refused."""
import torch
import torch.distributed as dist

import lockstep

lockstep.init_process_group()
one, each = torch.ones(1), torch.ones(dist.get_world_size())
is_first = dist.get_rank() == 0
CALLS = {
    "all_reduce": lambda call: call(one.clone()),
    "all_reduce_coalesced": lambda call: call([one.clone()]),
    "reduce": lambda call: call(one.clone(), 0),
    "broadcast": lambda call: call(one.clone(), 0),
    "broadcast_object_list": lambda call: call([dist.get_rank()], 0),
    "all_gather": lambda call: call([one.clone() for _ in each], one),
    "all_gather_coalesced": lambda call: call([[one.clone() for _ in each]], [one]),
    "all_gather_into_tensor": lambda call: call(each.clone(), one),
    "all_gather_single": lambda call: call(each.clone(), one),
    "all_gather_object": lambda call: call([None for _ in each], dist.get_rank()),
    "gather": lambda call: call(one, [one.clone() for _ in each] if is_first else None, 0),
    "gather_single": lambda call: call(one, each.clone() if is_first else None, 0),
    "gather_into_tensor": lambda call: call(one, each.clone() if is_first else None, 0),
    "gather_object": lambda call: call(dist.get_rank(), [None for _ in each] if is_first else None, 0),
    "scatter": lambda call: call(one.clone(), [one.clone() for _ in each] if is_first else None, 0),
    "scatter_object_list": lambda call: call([None], [1 for _ in each] if is_first else None, 0),
    "reduce_scatter": lambda call: call(one.clone(), [one.clone() for _ in each]),
    "reduce_scatter_single": lambda call: call(one.clone(), each),
    "reduce_scatter_tensor": lambda call: call(one.clone(), each),
    "all_to_all": lambda call: call([one.clone() for _ in each], [one.clone() for _ in each]),
    "all_to_all_single": lambda call: call(each.clone(), each),
    "send": lambda call: call(one, 1 - dist.get_rank()),
    "recv": lambda call: call(one.clone(), 1 - dist.get_rank()),
    "barrier": lambda call: call(),
    "monitored_barrier": lambda call: call()}
for name, call in CALLS.items():
    if not hasattr(dist, name):
        continue
    try:
        call(getattr(dist, name))
        print(f"{name}: done")
    except (lockstep.LockstepError, ValueError) as error:  # torch itself refuses the last one
        print(f"{name}: refused: {error}")
