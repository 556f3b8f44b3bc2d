// Any bytes as a TrainJob's file: reading, defaults and validation never crash; what is valid can be read, stays valid
// with its defaults, and its status keeps its meaning on the way to JSON and back. As a file for people, every finding
// stands within the text, and what has none makes pods.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "operator/api/defaults.h"
#include "operator/api/trainjob.h"
#include "operator/api/validate.h"
#include "operator/api/yaml.h"
#include "operator/manifest/job_file.h"
#include "operator/manifest/rendered_objects.h"
#include "runner/config/check_arguments.h"
#include "runner/models/workload_flags.h"

namespace {

using namespace lockstep;

void require(bool condition) {
  if (!condition) std::abort();
}

void check_valid(const Json& written) {
  Json stored = written;
  api::apply_trainjob_defaults(stored);
  require(api::validate(stored).empty());

  const auto job = api::trainjob_from_json(stored);
  require(job.ok());
  Json again = stored;
  again["status"] = api::to_json(job->status);
  const auto back = api::trainjob_from_json(again);
  require(back.ok());
  // As text: what is preserved unknown may hold a NaN, which equals nothing.
  require(dump_line(api::to_json(back->status)) == dump_line(again["status"]));
}

std::optional<ArgumentProblem> check_args(const AgentCommand& command) {
  const std::optional<ArgumentProblem> problem = check_arguments(command, all_workload_flags());
  require(!problem || !problem->index || *problem->index < command.arguments.size());
  return problem;
}

void check_file(std::string_view text) {
  const Result<manifest::JobFile> file = manifest::read_job_file(text, "input", check_args);
  if (!file.ok()) return;
  const auto lines = std::count(text.begin(), text.end(), '\n') + 1;
  for (const manifest::JobInFile& one : file->jobs) {
    require(one.findings.empty() == one.job.has_value());
    for (const manifest::Finding& finding : one.findings) {
      require(finding.position.line >= 1 && finding.position.line <= lines && finding.position.column >= 1);
    }
    if (one.job)
      require(manifest::rendered_objects(*one.job, {.nodes = std::min(one.job->spec.trainer.num_nodes, 3)}).ok() ||
              one.job->spec.elastic);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  check_file({reinterpret_cast<const char*>(data), size});
  const auto documents = api::parse_yaml_documents({reinterpret_cast<const char*>(data), size}, "input");
  if (!documents.ok()) return 0;
  for (const OrderedJson& document : *documents) {
    const Json written(document);
    static_cast<void>(api::trainjob_from_json(written));  // also what no schema has seen
    if (api::validate(written).empty()) check_valid(written);
  }
  return 0;
}
