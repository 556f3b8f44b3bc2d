#include "runner/cli/doctor_command.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>

#include "runner/base/json.h"
#include "runner/cli/doctor_program.h"
#include "runner/cli/find_worker.h"
#include "runner/cli/parse_command.h"
#include "runner/contract/env_names.h"
#include "runner/contract/exit_code.h"
#include "runner/doctor/collect.h"
#include "runner/doctor/report.h"
#include "runner/launch/launch_options.h"
#include "runner/launch/world.h"

namespace lockstep {
namespace {

constexpr int kNprocMax = 4096;
constexpr int kNodesMax = 1'000'000;
constexpr int kPortMax = 65535;
constexpr int kColumnsElsewhere = 120;  // columns when the output is a file or a pipe
constexpr const char* kNumber = "N";

struct DoctorOptions {
  doctor::Request request;
  std::string coordinator;
  bool json = false;
};

void declare(CLI::App& app, DoctorOptions& options) {
  doctor::Request& request = options.request;
  request.status_port = LaunchOptions().status_port;
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  const auto numbers = [](CLI::Option* option, int min, int max) {
    option->type_name(kNumber)->check(CLI::Range(min, max).description(""));
  };
  app.add_option("--dir", request.dir, "where checkpoints will go: its free space and speed")
      ->type_name("FOLDER")
      ->capture_default_str();
  app.add_option("--data", request.data, "a data set that will be read")->type_name("FILE");
  numbers(app.add_option("--nproc,--nproc_per_node", request.nproc, "ranks on this machine; else one per GPU"), 1,
          kNprocMax);
  numbers(app.add_option("--nnodes", request.nnodes, "machines")->capture_default_str(), 1, kNodesMax);
  app.add_option("--coordinator", options.coordinator, "where node 0's agent listens")->type_name("HOST:PORT");
  numbers(
      app.add_option("--status_port,--status-port", request.status_port, "HTTP port of /metrics and /status; 0: none")
          ->capture_default_str(),
      0, kPortMax);
  app.add_flag("--json", options.json, "print JSON");
  app.footer(
      "After --, a program, as for lockstep launch: what it will get, and why.\nExit codes: 0 nothing failed, 1 "
      "something did, 2 usage.");
}

Status split_coordinator(DoctorOptions& options) {
  doctor::Request& request = options.request;
  request.coordinator_port = kDefaultCoordinatorPort;
  if (options.coordinator.empty()) return {};
  const size_t colon = options.coordinator.rfind(':');
  int port = 0;
  const std::string digits = colon == std::string::npos ? "" : options.coordinator.substr(colon + 1);
  if (colon == 0 || !CLI::detail::lexical_cast(digits, port) || port < 1 || port > kPortMax) {
    return Error{ErrorCode::kInvalid,
                 "--coordinator: found \"" + options.coordinator + "\", expected HOST:PORT, as node0.example:29400"};
  }
  request.coordinator_host = options.coordinator.substr(0, colon);
  const bool is_bracketed = request.coordinator_host.starts_with("[") && request.coordinator_host.ends_with("]");
  if (is_bracketed) request.coordinator_host = request.coordinator_host.substr(1, request.coordinator_host.size() - 2);
  request.coordinator_port = port;
  return {};
}

doctor::ReportStyle style_of(const Environment& environment) {
  doctor::ReportStyle style{.color = false, .columns = kColumnsElsewhere};
  if (::isatty(STDOUT_FILENO) != 1) return style;
  style.color = variable(environment, env::kNoColor).empty();
  winsize window{};
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &window) == 0 && window.ws_col > 0) style.columns = window.ws_col;
  return style;
}

}  // namespace

CommandShape doctor_shape() {
  DoctorOptions options;
  CLI::App app;
  declare(app, options);
  return shape_of(app);
}

int doctor_command(const std::vector<std::string>& args, const Environment& environment, std::ostream& out,
                   std::ostream& err) {
  DoctorOptions options;
  const auto dashes = std::find(args.begin(), args.end(), "--");
  const std::vector<std::string> program(dashes == args.end() ? dashes : dashes + 1, args.end());
  CLI::App app("checks whether this machine can train, and says what to fix", "lockstep doctor");
  declare(app, options);
  // In a TrainJob's pod: spec.trainer.statusPort.
  if (const auto port = parse_number(variable(environment, env::kStatusPort))) {
    options.request.status_port = static_cast<int>(std::clamp<int64_t>(*port, 0, kPortMax));
  }
  if (const std::optional<int> code =
          parse_command(app, {args.begin(), dashes}, "see lockstep doctor --help", out, err))
    return *code;
  if (const Status split = split_coordinator(options); !split.ok()) {
    err << "lockstep doctor: " << split.error().message << "\n";
    return code_of(ExitCode::kUsage);
  }
  if (!program.empty()) {
    const Result<std::string> text = describe_program(program, environment, options.json);
    if (!text.ok()) {
      err << "lockstep doctor: " << text.error().message << "\n";
      return code_of(ExitCode::kUsage);
    }
    out << *text << std::flush;
    return 0;
  }
  const doctor::Facts facts = doctor::collect(options.request, environment, find_worker(environment));
  const std::vector<doctor::Check> checks = doctor::judge(facts);
  out << (options.json ? doctor::report_json(checks, facts)
                       : doctor::report_text(checks, facts, style_of(environment)));
  out.flush();
  return doctor::exit_code_of(checks);
}

}  // namespace lockstep
