// Reads arrays from NumPy's .npz files (a zip of .npy files), in which statistics of image features are stored.
// Role: float64 and float32 arrays, read as float64. Nothing from a file is trusted. Threads: pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runner/base/result.h"

namespace lockstep {

struct NpyArray {
  std::vector<int64_t> shape;
  std::vector<double> values;  // row by row
};

// The array `name` of the file `bytes`. `what` names the file in errors: kCorrupt (not a zip, truncated, damaged),
// kInvalid (no array of that name, with those that exist; a type other than little-endian float64 or float32; Fortran
// order; more than 1 GiB).
Result<NpyArray> read_npz_array(std::string_view bytes, const std::string& name, std::string_view what);

}  // namespace lockstep
