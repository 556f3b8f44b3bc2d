"""Every argument, attribute and public method of torch's DistributedDataParallel, and what it is here. docs/your-own-program.md has the
same table; a test compares both with torch's class."""
from __future__ import annotations

from typing import NamedTuple


class Name(NamedTuple):
    """`words`: what it does here; where it is refused, what to do."""
    name: str
    kind: str  # "argument", "attribute" or "method"
    is_refused: bool
    words: str


def _table(is_refused: bool, *rows: tuple[str, str, str]) -> list[Name]:
    return [Name(name, kind, is_refused, words) for name, kind, words in rows]


_AS_BEFORE = "as in torch"
_NOT_NEEDED = "accepted, and not needed"
_FINALIZE = "gradients are complete when backward() returns: leave it out"

NAMES = _table(
    False,
    ("module", "argument", "parameters of any shapes and dtypes, the same in all ranks, which is checked"),
    ("device_ids", "argument", "as in torch: at most one; the inputs of forward are moved to it"),
    ("output_device", "argument", _AS_BEFORE),
    ("dim", "argument", "as in torch: of scatter and gather"),
    ("broadcast_buffers", "argument", "rank 0's buffers go to all ranks at the end of each backward that is reduced (torch: before each "
                                      "forward). False: each rank keeps its own, also when it is started again"),
    ("init_sync", "argument", _AS_BEFORE),
    ("process_group", "argument", "the default group or None; another one is refused"),
    ("bucket_cap_mb", "argument", "a reduction begins with each this many MiB of gradients, without it with each 25 MiB"),
    ("find_unused_parameters", "argument", f"{_NOT_NEEDED}: unused parameters are always found"),
    ("check_reduction", "argument", "accepted, without effect, as in torch"),
    ("gradient_as_bucket_view", "argument", f"{_NOT_NEEDED}: a gradient keeps its own memory until the sum is complete"),
    ("static_graph", "argument", f"{_NOT_NEEDED}: unused parameters are always found"),
    ("skip_all_reduce_unused_params", "argument", f"{_NOT_NEEDED}: a gradient that no rank has stays as it was"),
    ("batched_grad_copy", "argument", f"{_NOT_NEEDED}: gradients are always copied together"),
    ("lazy_bucket_allocation", "argument", f"{_NOT_NEEDED}: the memory of a result is used again"),
    ("forward_sync_buffers", "argument", "another name of broadcast_buffers (torch 2.15); the buffers are rank 0's at the start in any case"),
    ("module", "attribute", _AS_BEFORE),
    ("device", "attribute", _AS_BEFORE),
    ("device_type", "attribute", _AS_BEFORE),
    ("device_ids", "attribute", _AS_BEFORE),
    ("output_device", "attribute", _AS_BEFORE),
    ("dim", "attribute", _AS_BEFORE),
    ("is_multi_device_module", "attribute", _AS_BEFORE),
    ("process_group", "attribute", "torch's default group"),
    ("parameters_to_ignore", "attribute", _AS_BEFORE),
    ("broadcast_buffers", "attribute", "what was given; setting it later has no effect"),
    ("forward_sync_buffers", "attribute", "what was given; setting it later has no effect"),
    ("modules_buffers", "attribute", _AS_BEFORE),
    ("named_module_buffers", "attribute", _AS_BEFORE),
    ("require_backward_grad_sync", "attribute", "as in torch: it is read by forward"),
    ("require_forward_param_sync", "attribute", "as in torch; setting it has no effect"),
    ("find_unused_parameters", "attribute", "what was given"),
    ("static_graph", "attribute", "what was given"),
    ("skip_all_reduce_unused_params", "attribute", "what was given"),
    ("batched_grad_copy", "attribute", "what was given"),
    ("lazy_bucket_allocation", "attribute", "what was given"),
    ("gradient_as_bucket_view", "attribute", "False"),
    ("mixed_precision", "attribute", "None"),
    ("bucket_bytes_cap", "attribute", _AS_BEFORE),
    ("bucket_bytes_cap_default", "attribute", _AS_BEFORE),
    ("bucket_bytes_cap_list", "attribute", "empty"),
    ("broadcast_bucket_size", "attribute", "as in torch, without effect"),
    ("use_side_stream_for_tensor_copies", "attribute", _AS_BEFORE),
    ("join_device", "attribute", _AS_BEFORE),
    ("join_process_group", "attribute", _AS_BEFORE),
    ("forward", "method", _AS_BEFORE),
    ("no_sync", "method", "as in torch: it is decided at forward"),
    ("train", "method", _AS_BEFORE),
    ("will_sync_module_buffers", "method", _AS_BEFORE),
    ("scatter", "method", _AS_BEFORE),
    ("gather", "method", _AS_BEFORE),
    ("to_kwargs", "method", _AS_BEFORE),
) + _table(
    True,
    ("delay_all_reduce_named_params", "argument", "leave it out: all gradients are reduced alike"),
    ("param_to_hook_all_reduce", "argument", "leave it out: all gradients are reduced alike"),
    ("mixed_precision", "argument", "use torch.autocast"),
    ("device_mesh", "argument", "leave it out: gradients are reduced over all ranks"),
    ("bucket_cap_mb_list", "argument", "use bucket_cap_mb: all buckets have one cap"),
    ("reducer", "attribute", "there is none of torch's"),
    ("logger", "attribute", "there is none of torch's"),
    ("device_mesh", "attribute", "gradients are reduced over all ranks"),
    ("buffer_hook", "attribute", "use broadcast_buffers"),
    ("require_manual_backward_finalization", "attribute", _FINALIZE),
    ("should_finalize_after_backward", "attribute", _FINALIZE),
    ("finalize_backward", "method", _FINALIZE),
    ("join", "method", "give all ranks the same number of batches (lockstep.DistributedSampler does)"),
    ("join_hook", "method", "give all ranks the same number of batches (lockstep.DistributedSampler does)"),
    ("register_comm_hook", "method", "gradients are reduced in the dtype that they have"),
)
# Not public, but met in frameworks and on the web.
PRIVATE = _table(
    True,
    ("_register_builtin_comm_hook", "method", "gradients are reduced in the dtype that they have"),
    ("_register_buffer_comm_hook", "method", "use broadcast_buffers"),
    ("_register_fused_optim", "method", "call the optimizer after backward"),
    ("_update_process_group", "method", "the group is replaced by itself when a rank is lost"),
    ("_remove_autograd_hooks", "method", "wrap the model once, and keep the wrapper"),
    ("_get_ddp_logging_data", "method", "there is no logger"),
    ("_set_ddp_runtime_logging_sample_rate", "method", "there is no logger"),
    ("__getstate__", "method", "copy or save its .module"),
    ("__setstate__", "method", "copy or save its .module"),
)


def refused(kind: str) -> dict[str, str]:
    """name → what to do, of this kind."""
    return {row.name: row.words for row in (*NAMES, *PRIVATE) if row.is_refused and row.kind == kind}
