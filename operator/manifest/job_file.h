// JobFile: the TrainJobs of a file, each with what is wrong with it and where. Pure.
//
// Role: `lockstep validate`, `render` and `run -f`. Finds what an API server would refuse (api/validate.h), what the
// operator would refuse (train/pod_template.h), and wrong flags in trainer.args and variables that the agent refuses,
// which only this program can check.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "operator/api/trainjob.h"
#include "operator/api/yaml.h"
#include "runner/base/json.h"
#include "runner/base/result.h"
#include "runner/contract/agent_command.h"

namespace lockstep::manifest {

// etcd takes no larger object.
inline constexpr size_t kObjectBytesMax = size_t{3} << 19;  // 1.5 MiB

struct Finding {
  api::YamlPosition position;
  std::string field;    // "spec.trainer.numNodes"; empty: the object as a whole
  std::string message;  // what was found, what was expected, what to do
  bool operator==(const Finding&) const = default;
};
// "trainjob.yaml:3:7: spec.trainer.numNodes: is 0, expected at least 1"
std::string line_of(const std::string& file, const Finding& finding);

struct JobInFile {
  std::string name;                  // "team-a/sasrec"; without a namespace "sasrec"
  Json written;                      // without defaults
  std::vector<Finding> findings;     // in the order of the text
  std::optional<api::TrainJob> job;  // with defaults; nothing when there are findings
  // Where a field stands in the text, or its nearest parent.
  std::function<api::YamlPosition(const std::string& field)> position_of;
};

struct JobFile {
  std::vector<JobInFile> jobs;
  std::vector<std::string> others;  // "PersistentVolumeClaim datasets"
};

// What is wrong with trainer.args, or with the environment, of a job whose pods start our agent.
using CheckArgs = std::function<std::optional<ArgumentProblem>(const AgentCommand& command)>;

// The elements of lists (kind: List) count as documents. `check_args` may be absent. kInvalid: no YAML, with
// file:line:column.
Result<JobFile> read_job_file(std::string_view text, const std::string& file, const CheckArgs& check_args);

// As Kubernetes does it in args and env: $(NAME) becomes the variable's value where it is known, $$(NAME) is $(NAME).
std::string expand_variables(std::string_view text,
                             const std::function<std::optional<std::string>(const std::string& name)>& value_of);

}  // namespace lockstep::manifest
