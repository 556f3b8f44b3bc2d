// `validate` and `render`, for lockstep and for kubectl-lockstep: files in, lines out.
//
// Role: the I/O for job_file.h, rendered_objects.h and server_check.h: reads files (or standard input, as -), writes
// text. Exit codes: 0; 2: wrong usage, a file that cannot be read, a TrainJob with something to correct, or no answer
// from the cluster.
#pragma once

#include <CLI/App.hpp>

#include <functional>
#include <istream>
#include <ostream>
#include <string>
#include <vector>

#include "operator/manifest/job_file.h"
#include "operator/manifest/kubectl.h"
#include "operator/manifest/rendered_objects.h"
#include "runner/base/result.h"

namespace lockstep::manifest {

struct CommandContext {
  std::string program;  // "lockstep", "kubectl lockstep": begins its messages
  std::istream& in;
  std::ostream& out;
  std::ostream& err;
  CheckArgs check_args;                             // by runner/config; absent: trainer.args are not checked
  RunKubectl run_kubectl;                           // for --server
  std::function<void(CLI::App&)> add_options = {};  // the program's own, on top of the command's
};

struct ValidateArguments {
  std::vector<std::string> paths;
  bool asks_server = false;
};

struct RenderArguments {
  std::string path;
  std::string output = "yaml";
  bool asks_server = false;
  RenderOptions options;
};

// The commands' options; what is parsed goes into `validate` and `render`, which must live as long as the app.
void add_validate_options(CLI::App& app, ValidateArguments& validate);
void add_render_options(CLI::App& app, RenderArguments& render);

// `arguments`: what stands after the command's name.
int validate_command(const std::vector<std::string>& arguments, const CommandContext& context);
int render_command(const std::vector<std::string>& arguments, const CommandContext& context);

// The text of a file, or of `in` for "-": no more of it than read_job_file takes. kNotFound, kUnavailable.
Result<std::string> read_manifest(const std::string& path, std::istream& in);

// The one TrainJob of a file; kInvalid with a line for every finding, or naming all when there are several.
Result<JobInFile> only_job(const JobFile& file, const std::string& path);

}  // namespace lockstep::manifest
