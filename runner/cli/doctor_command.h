// `lockstep doctor`: checks whether this machine can train, and says what to do if not.
// Exit codes: 0 nothing failed, 1 something did, 2 usage.
#pragma once

#include <ostream>
#include <string>
#include <vector>

#include "runner/base/environment.h"
#include "runner/cli/command_shape.h"

namespace lockstep {

// `args`: those after `lockstep doctor`.
int doctor_command(const std::vector<std::string>& args, const Environment& environment, std::ostream& out,
                   std::ostream& err);

CommandShape doctor_shape();

}  // namespace lockstep
