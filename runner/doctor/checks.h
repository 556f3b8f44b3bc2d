// What the facts mean for a training run. Pure.
#pragma once

#include <string>
#include <vector>

#include "runner/doctor/facts.h"

namespace lockstep::doctor {

enum class Verdict {
  kOk,
  kWarn,  // training runs, worse or elsewhere than it might
  kFail,  // training does not run
  kSkip,  // does not matter here
};
const char* to_string(Verdict verdict);

struct Check {
  std::string group;  // "Programs", "GPUs", …
  std::string name;   // "driver"
  Verdict verdict = Verdict::kSkip;
  std::string found;   // a sentence
  std::string remedy;  // what to do; empty for kOk and kSkip
};

// All checks, in the order in which they are read.
std::vector<Check> judge(const Facts& facts);

// How many ranks are meant: those asked for, else one per GPU that can be used, else 1.
int ranks_meant(const Facts& facts);

}  // namespace lockstep::doctor
