// `lockstep-operator try FILE`: creates the TrainJob of a file, prints its progress until it ends, and deletes it.
// `helm test` runs it in a pod; users may run it, too.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "operator/options.h"
#include "runner/base/environment.h"
#include "runner/base/json.h"

namespace lockstep {

struct TryOptions {
  std::string file;
  std::string kubeconfig, context;    // as OperatorOptions
  std::string ns;                     // empty: the file's, else that of the access, else "default"
  std::chrono::seconds timeout{600};  // until the job has ended
  bool replace = false;               // a TrainJob of that name is deleted first
};

// nullopt: --help was answered. kInvalid: usage, in words. `arguments`: what stands after "try".
Result<std::optional<TryOptions>> parse_try_options(const std::vector<std::string>& arguments);

// What `try` prints about a TrainJob as the API server has it. Pure.
struct TryProgress {
  std::string line;  // "Running: Pod 0 reports steps; 2 of 2 pods train; step 12 of 20"; the same again is not printed
  std::optional<bool> has_succeeded;  // once it has ended
};
TryProgress try_progress(const Json& job);

// Ok: the job is complete. Lines go to stdout. Errors: kInvalid names the file or the field; kExists; kCancelled: the
// job failed, was deleted, or has not ended in time; else the API server's. A job that has not succeeded stays.
Status try_job(const TryOptions& options, const Environment& environment);

}  // namespace lockstep
