// What the programs share that work on tensors from Python: NAME WHAT --flag value ….
#pragma once

#include <torch/types.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <exception>
#include <map>
#include <string>
#include <vector>

#include "runner/base/check.h"
#include "runner/base/result.h"
#include "runner/checkpoint/weights.h"
#include "tests/support/save_weights.h"

namespace lockstep {

using Flags = std::map<std::string, std::string>;

inline const at::Tensor& tensor_of(const NamedTensors& tensors, const std::string& name) {
  const auto found =
      std::find_if(tensors.begin(), tensors.end(), [&](const NamedTensor& tensor) { return tensor.name == name; });
  LOCKSTEP_CHECK(found != tensors.end(), name.c_str());
  return found->tensor;
}

// What `work` makes; with --repeats N it is done so often, and seconds [N] is written too.
template <typename Work>
NamedTensors repeated(const Flags& flags, const Work& work) {
  const bool is_timed = flags.contains("repeats");
  std::vector<double> seconds;
  NamedTensors out;
  for (int left = is_timed ? std::stoi(flags.at("repeats")) : 1; left > 0; --left) {
    out.clear();
    const auto began = std::chrono::steady_clock::now();
    out = work();
    seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count());
  }
  if (is_timed) out.push_back({"seconds", at::tensor(seconds, at::kDouble)});
  for (NamedTensor& tensor : out) tensor.tensor = tensor.tensor.detach().contiguous();
  return out;
}

// main() of a program: `run` gets WHAT and the flags.
template <typename Run>
int dump_main(int argc, char** argv, const Run& run) {
  try {
    Flags flags;
    for (int i = 2; i + 1 < argc; i += 2) flags[std::string(argv[i]).substr(2)] = argv[i + 1];
    const Status done = run(argc > 1 ? argv[1] : "", flags);
    if (done.ok()) return 0;
    std::fprintf(stderr, "%s: %s\n", argv[0], done.error().message.c_str());
  } catch (const std::exception& error) {  // a flag that is missing, too
    std::fprintf(stderr, "%s: %s\n", argv[0], error.what());
  }
  return 1;
}

}  // namespace lockstep
