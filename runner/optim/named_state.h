// Loading of named tensors in place, shared by everything in this room that has state in a checkpoint.
#pragma once

#include <string_view>

#include "runner/base/result.h"
#include "runner/tensor/named_tensor.h"

namespace lockstep {

// Copies `source` into the tensors of `target` of the same names, in any order. Errors (kInvalid, naming `what`): a
// name that is missing, unknown or there twice, a shape or dtype that differs; found before anything is copied.
Status copy_named(const NamedTensors& source, const NamedTensors& target, std::string_view what);

}  // namespace lockstep
