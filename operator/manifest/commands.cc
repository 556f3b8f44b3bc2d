#include "operator/manifest/commands.h"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>

#include "operator/api/yaml.h"
#include "operator/manifest/rendered_objects.h"
#include "operator/manifest/server_check.h"
#include "operator/train/user_program.h"
#include "runner/base/plural.h"
#include "runner/contract/exit_code.h"

namespace lockstep::manifest {
namespace {

constexpr int kUsage = code_of(ExitCode::kUsage);
constexpr int kNodesMax = 10'000;  // as the CRD has it for numNodes

// PROGRAM stands for the program's name.
constexpr const char* kValidateHelp = R"(Usage: PROGRAM validate -f FILE… [--server]

Names what is wrong with TrainJob files, without a cluster: what an API server with the TrainJob CRD would refuse, what
the operator would, and what the pods' own agent would of trainer.args and env. One line each, by line and column:
  trainjob.yaml:12:7: spec.trainer.numNodes: is 0, expected at least 1

  -f, --filename FILE    a file, a folder (every .yaml, .yml and .json in it), or - for standard input;
                         may be given again
      --server           also ask the cluster of your kubeconfig, by a dry run of the TrainJob and of its first pod
  -h, --help             print this and stop

A file may hold several documents; those of other kinds are passed over. YAML is read as kubectl reads it. A key that is
given twice, and a number that YAML 1.1 and 1.2 read differently (010), are refused. What only a cluster knows (quota,
policies, webhooks, its version) is found by --server: it runs kubectl, which must be on the PATH, and creates nothing.

Examples:
  PROGRAM validate -f trainjob.yaml
  PROGRAM validate -f jobs/
  PROGRAM validate -f trainjob.yaml --server
  kustomize build . | PROGRAM validate -f -

Exit codes: 0 every TrainJob is valid; 2 something is wrong, or there is none.
)";

constexpr const char* kRenderHelp =
    R"(Usage: PROGRAM render -f FILE [--nodes N] [--attempt N] [-n NAMESPACE] [-o yaml|json] [--server]

Prints the objects that the operator would make of a TrainJob, without a cluster: the headless Service, the
NetworkPolicy (networkPolicy: IntraJob), the PodDisruptionBudget (disruption.budget: OneAtATime) and every pod with its
environment. UID, run number and token are known in a cluster alone; placeholders stand for them.

  -f, --filename FILE         a file with one TrainJob, or - for standard input
      --nodes N               number of pods, instead of numNodes: 1 to 10000
      --attempt N             the pods' attempt, as after so many replacements
  -n, --namespace NAMESPACE   instead of the file's; without any: default
  -o, --output yaml|json      json: one List
      --server                print them only if the cluster of your kubeconfig takes the TrainJob and its first pod, by
                              a dry run through kubectl
  -h, --help                  print this and stop

Examples:
  PROGRAM render -f trainjob.yaml
  PROGRAM render -f trainjob.yaml --nodes 64 -o json | jq -r '.items[].metadata.name'
  diff <(PROGRAM render -f old.yaml) <(PROGRAM render -f new.yaml)

Exit codes: 0 done; 2 something is wrong.
)";

std::string help_of(std::string text, const std::string& program) {
  constexpr std::string_view kPlaceholder = "PROGRAM";
  for (size_t at = text.find(kPlaceholder); at != std::string::npos; at = text.find(kPlaceholder, at)) {
    text.replace(at, kPlaceholder.size(), program);
  }
  return text;
}

// Nothing: the caller goes on. Else the exit code: --help was answered, or the usage was wrong.
std::optional<int> parse(CLI::App& app, const std::vector<std::string>& arguments, const char* help,
                         const CommandContext& context) {
  app.set_help_flag("-h,--help");
  if (context.add_options) context.add_options(app);
  try {
    app.parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));  // CLI11 takes them from the back
  } catch (const CLI::CallForHelp&) {
    context.out << help_of(help, context.program);
    return 0;
  } catch (const CLI::ParseError& e) {
    context.err << app.get_name() << ": " << e.what() << "; see " << app.get_name() << " --help\n";
    return kUsage;
  }
  return std::nullopt;
}

bool is_manifest(const std::filesystem::path& path) {
  const std::string extension = path.extension().string();
  return extension == ".yaml" || extension == ".yml" || extension == ".json";
}

struct NamedFile {
  std::string path;
  bool of_folder = false;  // found in a folder of the command line: it need not contain a TrainJob
};

// A folder stands for its files, by name.
Result<std::vector<NamedFile>> files_of(const std::vector<std::string>& paths) {
  std::vector<NamedFile> files;
  for (const std::string& path : paths) {
    std::error_code error;
    if (path == "-" || !std::filesystem::is_directory(path, error)) {
      files.push_back({path});
      continue;
    }
    std::vector<std::string> found;
    for (const auto& entry : std::filesystem::directory_iterator(path, error)) {
      if (is_manifest(entry.path())) found.push_back(entry.path().string());
    }
    if (error) return Error{ErrorCode::kUnavailable, path + ": " + error.message()};
    if (found.empty()) return Error{ErrorCode::kNotFound, path + ": a folder without .yaml, .yml or .json files"};
    std::sort(found.begin(), found.end());
    for (const std::string& file : found) files.push_back({file, true});
  }
  return files;
}

std::string shown_path(const std::string& path) { return path == "-" ? "standard input" : path; }

bool names_plugin(const api::TrainJob& job) {
  const std::vector<std::string>& args = job.spec.trainer.args;
  return std::any_of(args.begin(), args.end(),
                     [](const std::string& arg) { return arg == "--plugin" || arg.starts_with("--plugin="); });
}

// Would the same command run under launcher Lockstep?
bool can_be_launched(const api::TrainJob& job) {
  if (job.spec.trainer.launcher != api::Launcher::kTorchrun) return false;
  api::TrainJobSpec spec = job.spec;
  spec.trainer.launcher = api::Launcher::kLockstep;
  return train::runs_user_program(spec) && train::check_program(spec).ok();
}

// True: the cluster takes the job.
bool ask_about(const JobInFile& job, const std::string& name, const CommandContext& context) {
  const Result<std::vector<Finding>> findings = ask_server(job, "", context.run_kubectl);
  if (!findings.ok()) {
    context.err << context.program << ": " << findings.error().message << "\n";
    return false;
  }
  for (const Finding& finding : *findings) context.out << line_of(name, finding) << "\n";
  return findings->empty();
}

// True: nothing is wrong with it.
bool validate_file(const NamedFile& file, bool asks_server, const CommandContext& context) {
  const std::string name = shown_path(file.path);
  const Result<std::string> text = read_manifest(file.path, context.in);
  if (!text.ok()) {
    context.err << context.program << ": " << text.error().message << "\n";
    return false;
  }
  const Result<JobFile> found = read_job_file(*text, name, context.check_args);
  if (!found.ok()) {
    context.out << found.error().message << "\n";
    return false;
  }
  bool all_valid = true;
  for (const JobInFile& job : found->jobs) {
    for (const Finding& finding : job.findings) context.out << line_of(name, finding) << "\n";
    const bool is_valid = job.findings.empty() && (!asks_server || ask_about(job, name, context));
    if (is_valid) {
      context.out << name << ": TrainJob " << job.name << " is valid"
                  << (asks_server ? ", and the cluster takes it and its first pod" : "")
                  << (names_plugin(*job.job) ? " (its arguments are checked in the pod, which has the plugin)" : "")
                  << (can_be_launched(*job.job) ? " (launcher: Lockstep in the place of Torchrun would start the same "
                                                  "command, and restart lost ranks without new pods)"
                                                : "")
                  << "\n";
    }
    all_valid = all_valid && is_valid;
  }
  for (const std::string& other : found->others)
    context.out << name << ": " << other << " is no TrainJob: passed over\n";
  if (!found->jobs.empty() || file.of_folder) return all_valid;
  context.out << name << ": holds no TrainJob (apiVersion: lockstep.dev/v1, kind: TrainJob)\n";
  return false;
}

void write_objects(const std::vector<Json>& objects, const std::string& output, std::ostream& out) {
  if (output == "json") {
    OrderedJson list = {{"apiVersion", "v1"}, {"kind", "List"}, {"items", OrderedJson::array()}};
    for (const Json& object : objects) list["items"].push_back(OrderedJson(object));
    out << dump_pretty(list);
    return;
  }
  for (size_t i = 0; i < objects.size(); ++i) out << (i == 0 ? "" : "---\n") << api::to_yaml(OrderedJson(objects[i]));
}

}  // namespace

Result<std::string> read_manifest(const std::string& path, std::istream& in) {
  std::ifstream file;
  if (path != "-") {
    std::error_code error;
    if (std::filesystem::is_directory(path, error)) {
      return invalid(path + " is a folder, expected a file");
    }
    errno = 0;
    file.open(path, std::ios::binary);
    if (!file) {
      const bool is_missing = !std::filesystem::exists(path, error);
      return Error{is_missing ? ErrorCode::kNotFound : ErrorCode::kUnavailable,
                   path + ": cannot be opened: " + std::strerror(errno)};
    }
  }
  std::istream& source = path == "-" ? in : file;
  std::string text(api::kYamlBytesMax + 1, '\0');  // one more than what is refused for its size
  source.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (source.bad()) return Error{ErrorCode::kUnavailable, shown_path(path) + ": cannot be read"};
  text.resize(static_cast<size_t>(source.gcount()));
  return text;
}

Result<JobInFile> only_job(const JobFile& file, const std::string& path) {
  if (file.jobs.empty()) {
    return invalid(path, "holds no TrainJob (apiVersion: lockstep.dev/v1, kind: TrainJob)");
  }
  if (file.jobs.size() > 1) {
    return invalid(path + ": holds " + std::to_string(file.jobs.size()) + " TrainJobs (" +
                   joined(file.jobs, ", ", &JobInFile::name) + "), expected one; put each into a file of its own");
  }
  const JobInFile& job = file.jobs.front();
  if (job.findings.empty()) return job;
  return invalid(joined(job.findings, "\n", [&](const Finding& finding) { return line_of(path, finding); }));
}

void add_validate_options(CLI::App& app, ValidateArguments& validate) {
  app.add_option("-f,--filename,--file,FILES", validate.paths, "files or folders with TrainJobs")
      ->required()
      ->type_name("FILE");
  app.add_flag("--server", validate.asks_server, "ask the cluster, too");
}

void add_render_options(CLI::App& app, RenderArguments& render) {
  app.add_option("-f,--filename,--file,FILE", render.path, "a file with one TrainJob")->required()->type_name("FILE");
  app.add_option("--nodes", render.options.nodes, "as many pods (numNodes)")->check(CLI::Range(1, kNodesMax));
  app.add_option("--attempt", render.options.attempt, "the pods of this attempt")->check(CLI::NonNegativeNumber);
  app.add_option("-n,--namespace", render.options.ns, "where the file names none");
  app.add_option("-o,--output", render.output, "yaml or json")->check(CLI::IsMember({"yaml", "json"}));
  app.add_flag("--server", render.asks_server, "ask the cluster first");
}

int validate_command(const std::vector<std::string>& arguments, const CommandContext& context) {
  CLI::App app("", context.program + " validate");
  ValidateArguments validate;
  add_validate_options(app, validate);
  if (const std::optional<int> code = parse(app, arguments, kValidateHelp, context)) return *code;
  const Result<std::vector<NamedFile>> files = files_of(validate.paths);
  if (!files.ok()) {
    context.err << context.program << ": " << files.error().message << "\n";
    return kUsage;
  }
  bool all_valid = true;
  for (const NamedFile& file : *files) all_valid = validate_file(file, validate.asks_server, context) && all_valid;
  return all_valid ? 0 : kUsage;
}

int render_command(const std::vector<std::string>& arguments, const CommandContext& context) {
  CLI::App app("", context.program + " render");
  RenderArguments render;
  add_render_options(app, render);
  if (const std::optional<int> code = parse(app, arguments, kRenderHelp, context)) return *code;
  const auto make = [&]() -> Result<std::vector<Json>> {
    TRY_ASSIGN(const std::string text, read_manifest(render.path, context.in));
    TRY_ASSIGN(const JobFile file, read_job_file(text, shown_path(render.path), context.check_args));
    TRY_ASSIGN(JobInFile found, only_job(file, shown_path(render.path)));
    if (found.job->meta.name.empty()) {
      return invalid("metadata.name: is missing; with generateName the API server makes the name");
    }
    if (render.asks_server) {
      TRY_ASSIGN(const std::vector<Finding> refused, ask_server(found, render.options.ns, context.run_kubectl));
      if (!refused.empty()) {
        return invalid(
            joined(refused, "\n", [&](const Finding& one) { return line_of(shown_path(render.path), one); }));
      }
    }
    return rendered_objects(*found.job, render.options);
  };
  const Result<std::vector<Json>> objects = make();
  if (!objects.ok()) {
    context.err << objects.error().message << "\n";
    return kUsage;
  }
  write_objects(*objects, render.output, context.out);
  return 0;
}

}  // namespace lockstep::manifest
