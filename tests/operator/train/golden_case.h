// A golden case: observed.yaml, partial and readable, made into an Observed. tests/golden/operator/README.md has the
// words.
#pragma once

#include <string>

#include "operator/train/observed.h"
#include "runner/base/result.h"

namespace lockstep::train {

struct GoldenCase {
  Observed observed;
  bool shows_objects = false;  // plan.yaml has the objects that are made, too
};

Result<GoldenCase> read_golden_case(const std::string& yaml, const std::string& name);

}  // namespace lockstep::train
