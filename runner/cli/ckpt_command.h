// `lockstep ckpt ls|verify|export|prune`: look at, check, convert and remove old checkpoints. No torch.
// Exit codes: 0, 2 (usage, a newer format, nothing there), 4 (damaged, unreadable, not writable).
#pragma once

#include <ostream>
#include <string>
#include <vector>

#include "runner/base/file_system.h"
#include "runner/cli/command_shape.h"

namespace lockstep {

// `args`: those after `lockstep ckpt`.
int ckpt_command(FileSystem& fs, const std::vector<std::string>& args, std::ostream& out, std::ostream& err);

CommandShape ckpt_shape();

}  // namespace lockstep
