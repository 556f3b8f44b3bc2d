#include "operator/manifest/server_check.h"

#include <algorithm>
#include <cctype>
#include <optional>
#include <sstream>
#include <string_view>
#include <utility>

#include "operator/manifest/rendered_objects.h"
#include "operator/train/refusal.h"
#include "runner/base/json.h"

namespace lockstep::manifest {
namespace {

// The first path in the words; empty: none.
std::string first_path(const std::string& words) {
  for (size_t at = 0; at < words.size(); ++at) {
    if (at != 0 && train::kBeforePath.find(words[at - 1]) == std::string_view::npos) continue;
    if (const size_t length = train::path_length(std::string_view(words).substr(at))) return words.substr(at, length);
  }
  return {};
}

// kubectl's own remarks, when it or the server is slow: "I1129 20:27:50.913478 27830 request.go:752] Waited before …".
bool is_log_line(std::string_view line) {
  return line.size() > 5 && std::string_view("IWEF").find(line[0]) != std::string_view::npos && line[5] == ' ' &&
         std::all_of(line.begin() + 1, line.begin() + 5, [](unsigned char c) { return std::isdigit(c) != 0; });
}

// The server writes a map's key in brackets, we write it after a point:
// limits[nvidia.com/gpu].
std::string with_points(const std::string& path) {
  std::string text;
  for (size_t at = 0; at < path.size();) {
    const size_t close = path[at] == '[' ? path.find(']', at) : std::string::npos;
    if (close == std::string::npos) {
      text.push_back(path[at++]);
      continue;
    }
    const std::string key = path.substr(at + 1, close - at - 1);
    text.append(parse_number(key) ? "[" + key + "]" : "." + key);
    at = close + 1;
  }
  return text;
}

Finding finding_of(const JobInFile& job, const std::string& words) {
  const std::string path = first_path(words);
  const bool is_first = !path.empty() && words.starts_with(path + ": ");
  return {.position = job.position_of(with_points(path)),
          .field = is_first ? path : "",
          .message = is_first ? words.substr(path.size() + 2) : words};
}

// A pod that a dry run takes whatever else there is in the namespace: a free
// name, and no owner, whom the server may not know.
Json for_dry_run(Json pod) {
  Json& metadata = pod["metadata"];
  metadata["generateName"] = metadata["name"].get<std::string>() + "-";
  for (const char* name : {"name", "namespace", "ownerReferences"}) metadata.erase(name);
  return pod;
}

Result<std::optional<Json>> first_pod(const api::TrainJob& job) {
  TRY_ASSIGN(const std::vector<Json> objects, rendered_objects(job, {}));
  const auto pod = std::find_if(objects.begin(), objects.end(),
                                [](const Json& object) { return text_field(object, {"kind"}) == "Pod"; });
  return pod == objects.end() ? std::nullopt : std::optional(*pod);
}

}  // namespace

std::vector<std::string> refusals_in(const std::string& kubectl_errors) {
  constexpr std::string_view kStdin = "\"STDIN\": ";
  constexpr std::string_view kInvalid = " is invalid: ";
  std::vector<std::string> refusals;
  std::istringstream lines(kubectl_errors);
  for (std::string line; std::getline(lines, line);) {
    while (!line.empty() && std::isspace(static_cast<unsigned char>(line.back())) != 0) line.pop_back();
    if (line.empty() || line.starts_with("Warning:") || is_log_line(line)) continue;
    if (line.starts_with("* ")) {
      refusals.push_back(line.substr(2));  // one of several, after a line that ends with "is invalid:"
      continue;
    }
    if (line.starts_with("The ") && line.ends_with(" is invalid:")) continue;
    const size_t invalid = line.starts_with("The ") ? line.find(kInvalid) : std::string::npos;
    if (invalid != std::string::npos) {
      refusals.push_back(line.substr(invalid + kInvalid.size()));
      continue;
    }
    const size_t source = line.find(kStdin);
    refusals.push_back(source == std::string::npos ? line : line.substr(source + kStdin.size()));
  }
  return refusals;
}

Result<std::vector<Finding>> ask_server(const JobInFile& job, const std::string& ns, const RunKubectl& run_kubectl) {
  const std::string& in = ns.empty() ? job.job->meta.ns : ns;
  const auto ask = [&](const char* verb, const Json& object) -> Result<std::vector<std::string>> {
    std::vector<std::string> arguments = {verb, "--dry-run=server", "--output=name", "--filename=-"};
    if (!in.empty()) arguments.push_back("--namespace=" + in);
    TRY_ASSIGN(const ProgramEnd end, run_kubectl(arguments, dump_line(object)));
    if (end.code == 0) return std::vector<std::string>();
    std::vector<std::string> refusals = refusals_in(end.err);
    if (refusals.empty()) refusals.push_back("kubectl ended with " + std::to_string(end.code) + " and said nothing");
    return refusals;
  };
  Json written = job.written;
  if (!in.empty()) written["metadata"]["namespace"] = in;
  std::vector<Finding> findings;
  // As the user would; a name that the server makes can only be created.
  const char* const verb = text_field(written, {"metadata", "name"}).empty() ? "create" : "apply";
  TRY_ASSIGN(const std::vector<std::string> of_job, ask(verb, written));
  for (const std::string& words : of_job) findings.push_back(finding_of(job, words));
  if (!findings.empty()) return findings;
  api::TrainJob named = *job.job;
  if (named.meta.name.empty()) named.meta.name = text_field(written, {"metadata", "generateName"}) + "00000";
  TRY_ASSIGN(const std::optional<Json> pod, first_pod(named));
  if (!pod) return findings;
  TRY_ASSIGN(const std::vector<std::string> of_pod, ask("create", for_dry_run(*pod)));
  for (const std::string& words : of_pod) {
    findings.push_back(finding_of(job, train::in_words_of_the_spec(words, named.spec, *pod)));
  }
  return findings;
}

}  // namespace lockstep::manifest
