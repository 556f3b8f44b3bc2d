// `lockstep run -f trainjob.yaml`: a TrainJob of a file on this machine, as `lockstep run` with flags. Pure, but for
// read_trainjob_run.
//
// What the file says of the run (arguments, nodes, ranks, elastic bounds, environment, time-outs, where checkpoints go)
// is taken; what it says of a cluster (image, resources, placement, restart policy) is named and left alone. Paths
// below the pods' mounts are mapped to local ones.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "operator/manifest/job_file.h"
#include "runner/base/result.h"

namespace lockstep {

// Where checkpoints go without a --mount of their own: below it a folder with the job's name.
inline constexpr const char* kLocalCheckpoints = "./checkpoints";

extern const char* const kTrainJobRunHelp;

struct TrainJobRunOptions {
  std::string path;                           // of the file; "-": standard input
  std::map<std::string, std::string> mounts;  // path in the pod → local path, without final slashes
  std::vector<std::string> flags;             // of `lockstep run`; they win over the file's
};

// `arguments`: what stands after `lockstep run`. Nothing: they name no file.
Result<std::optional<TrainJobRunOptions>> parse_trainjob_run(const std::vector<std::string>& arguments);

struct TrainJobRun {
  std::vector<std::string> arguments;              // of `lockstep run`
  std::map<std::string, std::string> environment;  // to be set
  std::vector<std::string> remarks;                // lines: what was taken, what was ignored
};

using PathExists = std::function<bool(const std::string& path)>;

// kInvalid names the field, or the option that is missing.
Result<TrainJobRun> local_run_of(const manifest::JobInFile& job, const TrainJobRunOptions& options,
                                 const PathExists& exists);

// Reads the file.
Result<TrainJobRun> read_trainjob_run(const TrainJobRunOptions& options);

}  // namespace lockstep
