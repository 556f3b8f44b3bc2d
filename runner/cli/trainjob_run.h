// `lockstep run -f trainjob.yaml`: runs a TrainJob's file on this machine, by turning it into flags of `lockstep run`.
// Pure, except read_trainjob_run.
//
// Fields about the run (arguments, nodes, ranks, elastic bounds, environment, timeouts, place of checkpoints) are used;
// fields about the cluster (image, resources, placement, restart policy) are listed as ignored. Paths below the pods'
// mounts are mapped to local ones.
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

// Checkpoints go into a folder with the job's name below this one, unless a --mount maps the checkpoint volume.
inline constexpr const char* kLocalCheckpoints = "./checkpoints";

extern const char* const kTrainJobRunHelp;

struct TrainJobRunOptions {
  std::string path;                           // the TrainJob's file; "-": standard input
  std::map<std::string, std::string> mounts;  // path in the pod → local path, without final slashes
  std::vector<std::string> flags;             // of `lockstep run`; they win over the file's
};

// `arguments`: those after `lockstep run`. nullopt: they name no file.
Result<std::optional<TrainJobRunOptions>> parse_trainjob_run(const std::vector<std::string>& arguments);

struct TrainJobRun {
  std::vector<std::string> arguments;              // of `lockstep run`
  std::map<std::string, std::string> environment;  // to be set
  std::vector<std::string> remarks;                // lines to print: what was used and what was ignored
};

using PathExists = std::function<bool(const std::string& path)>;

// Error (kInvalid): names the wrong field, or the missing option.
Result<TrainJobRun> local_run_of(const manifest::JobInFile& job, const TrainJobRunOptions& options,
                                 const PathExists& exists);

// Reads the file.
Result<TrainJobRun> read_trainjob_run(const TrainJobRunOptions& options);

}  // namespace lockstep
