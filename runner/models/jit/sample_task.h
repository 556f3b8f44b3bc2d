// `lockstep jit sample`: makes images with a trained model. Threads: starts one for each of --nproc ranks and joins
// them before it returns; they call input.log one at a time.
#pragma once

#include <optional>

#include "runner/contract/exit_code.h"
#include "runner/models/task.h"

namespace lockstep {

// Writes the contact sheet (PNG) to --grid, the images into --folder, and a line of JSON about them to input.out. The
// number of classes comes from the weights; their names from the folders of --data_path, if these exist.
// Errors: kUsage: a checkpoint of --data_format tokens, unknown class, weights of another shape, wrong files of
// --fid_features and --fid_stats. kData: the images to compare with cannot be read. kCheckpoint: a result cannot be
// written.
std::optional<Failure> sample_jit(const TaskInput& input);

}  // namespace lockstep
