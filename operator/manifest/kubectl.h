// Runs kubectl, which knows how its user reaches a cluster and logs in there.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "runner/base/environment.h"
#include "runner/base/result.h"

namespace lockstep::manifest {

struct ProgramEnd {
  int code = 0;  // above 128: ended by the signal of that number less 128
  std::string out;
  std::string err;
};

// `arguments`: those after `kubectl`. `input`: its standard input; when it is empty, kubectl has ours. Errors: it
// cannot be started.
using RunKubectl =
    std::function<Result<ProgramEnd>(const std::vector<std::string>& arguments, const std::string& input)>;

// The kubectl that the environment's PATH finds. Waits until it ends; kubectl has time limits of its own. What it
// writes to its standard error before a pause (a login asks for something) is shown on ours at once.
Result<ProgramEnd> run_kubectl(const std::vector<std::string>& arguments, const std::string& input,
                               const Environment& environment);

}  // namespace lockstep::manifest
