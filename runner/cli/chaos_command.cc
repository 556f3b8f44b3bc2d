#include "runner/cli/chaos_command.h"

#include <signal.h>  // NOLINT(modernize-deprecated-headers): kill is POSIX

#include <CLI/CLI.hpp>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <optional>
#include <thread>
#include <utility>

#include "runner/agent/control_socket.h"
#include "runner/base/clock.h"
#include "runner/base/plural.h"
#include "runner/cli/control_client.h"
#include "runner/cli/parse_command.h"
#include "runner/contract/exit_code.h"

namespace lockstep {
namespace {

constexpr double kNanosecondsPerSecond = 1e9;
constexpr std::chrono::milliseconds kPollInterval{50};
constexpr double kContinuedSeconds = 10;  // a rank that was continued breaks its group within this time, or not at all
constexpr int kRankMax = 1'000'000;
constexpr int kCountMax = 1'000'000;

struct ChaosOptions {
  std::string folder;
  std::optional<int> rank;
  std::optional<int> node;
  std::optional<double> seconds;
  int count = 1;
  double every = 10;      // seconds
  double patience = 120;  // seconds that the run may take to recover
};

std::string exact_seconds(double seconds) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.3f s", seconds);
  return text;
}

void wait_seconds(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }

std::chrono::milliseconds milliseconds_of(double seconds) {
  return std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
}

// ---- the agents of the run ----

// An agent of the run.
struct RunningAgent {
  int node = 0;
  int64_t pid = 0;
  Json status;
};

Result<Json> ask_node(const std::string& folder, int node, const Json& request) {
  TRY_ASSIGN(ControlClient client, ControlClient::connect(folder, node));
  return client.ask(request);
}

Result<std::vector<RunningAgent>> find_agents(const std::string& folder) {
  std::vector<RunningAgent> agents;
  const std::vector<int> nodes = control_sockets_in(folder);
  if (nodes.empty()) return Error{ErrorCode::kNotFound, "no agent's socket in " + folder + ": no run is active there"};
  for (const int node : nodes) {
    Result<Json> answer = ask_node(folder, node, {{"command", "status"}});
    if (!answer.ok() && answer.error().code == ErrorCode::kGone) continue;  // the socket of an agent that has ended
    if (!answer.ok()) return answer.error();
    agents.push_back(RunningAgent{.node = node, .pid = answer->at("pid"), .status = answer->at("status")});
  }
  if (agents.empty()) return Error{ErrorCode::kGone, "all agents of " + folder + " have ended"};
  return agents;
}

// A worker of the run.
struct RunningRank {
  int rank = -1;
  int node = 0;
  pid_t pid = 0;
  int64_t step = 0;
};

// Without a rank: the last one.
Result<RunningRank> find_rank(const std::vector<RunningAgent>& agents, std::optional<int> rank) {
  RunningRank last;
  for (const RunningAgent& agent : agents) {
    for (const Json& worker : agent.status.at("workers")) {
      if (worker.at("node") != agent.node) continue;  // node 0 also lists the workers of other nodes
      const Json& pid = worker.at("pid");             // null: the rank of a program has no process yet
      const RunningRank found{.rank = worker.at("rank"),
                              .node = agent.node,
                              .pid = pid.is_null() ? 0 : pid.get<pid_t>(),
                              .step = worker.at("step")};
      const bool is_alive = found.pid > 0 && worker.at("state") != "ended" && worker.at("state") != "done";
      if (rank && found.rank == *rank && !is_alive) return invalid("rank " + std::to_string(*rank) + " is not running");
      if (rank && found.rank == *rank) return found;
      if (is_alive && found.rank > last.rank) last = found;
    }
  }
  if (rank) {
    return invalid("no rank " + std::to_string(*rank) + " in this run; the last one is " + std::to_string(last.rank));
  }
  if (last.rank < 0) return invalid("this run has no ranks yet");
  return last;
}

Result<RunningAgent> find_node(const std::vector<RunningAgent>& agents, std::optional<int> node) {
  if (!node) return agents.back();
  for (const RunningAgent& agent : agents) {
    if (agent.node == *node) return agent;
  }
  return invalid("no node " + std::to_string(*node) + " in this run; the last one is " +
                 std::to_string(agents.back().node));
}

// ---- the recovery ----

Result<int64_t> count_recoveries(const std::string& folder) {
  TRY_ASSIGN(const Json answer, ask_node(folder, 0, {{"command", "recoveries"}, {"after", -1}}));
  return answer.at("total").get<int64_t>();
}

// What node 0's agent knows of the recoveries after the first `before`.
struct News {
  std::vector<Json> recoveries;
  bool has_ended = false;
  std::optional<int> exit_code;  // of the run, when it has ended; nullopt: not known
};

// Waits for `seconds` at most.
Result<News> await_news(const std::string& folder, int64_t before, double seconds) {
  const Json request{{"command", "recoveries"}, {"after", before}, {"seconds", seconds}};
  Result<ControlClient> client = ControlClient::connect(folder, 0);
  Result<Json> answer =
      client.ok() ? client->ask(request, milliseconds_of(seconds + 10)) : Result<Json>(client.error());
  const bool is_gone =
      !answer.ok() && (answer.error().code == ErrorCode::kGone || answer.error().code == ErrorCode::kNotFound);
  if (is_gone) return News{.recoveries = {}, .has_ended = true, .exit_code = {}};
  if (!answer.ok()) return answer.error();
  const auto& all = answer->at("recoveries");
  const auto fresh = std::min<int64_t>(answer->at("total").get<int64_t>() - before, std::ssize(all));
  News news{
      .recoveries = std::vector<Json>(all.end() - static_cast<std::ptrdiff_t>(std::max<int64_t>(fresh, 0)), all.end()),
      .has_ended = answer->at("ended"),
      .exit_code = {}};
  if (answer->contains("exitCode")) news.exit_code = answer->at("exitCode").get<int>();
  return news;
}

std::string since_fault(int64_t hit_ns) {
  return exact_seconds(static_cast<double>(monotonic_ns() - hit_ns) / kNanosecondsPerSecond) + " after the fault";
}

// The run has ended and has reported no recovery: it was at its end already, or the fault has ended it.
Status report_end(const News& news, int64_t hit_ns, std::ostream& out) {
  if (news.exit_code.value_or(0) != 0) {
    return Error{ErrorCode::kRetry, "the run did not recover: it ended with exit code " +
                                        std::to_string(*news.exit_code) + " (" + exit_reason(*news.exit_code) + "), " +
                                        since_fault(hit_ns)};
  }
  out << "  the run ended " << since_fault(hit_ns)
      << (news.exit_code ? ", with exit code 0: it had nothing left to train\n" : "; its own last lines say how\n");
  return {};
}

// The newest step of a run that trains; nothing: it does not train (yet).
std::optional<int64_t> step_of_run(const std::string& folder) {
  const Result<Json> answer = ask_node(folder, 0, {{"command", "status"}});
  if (!answer.ok() || answer->at("status").at("phase") != "Running") return std::nullopt;
  const Json& workers = answer->at("status").at("workers");
  return workers.empty() ? std::nullopt : std::optional(workers.at(0).at("step").get<int64_t>());
}

// What a fault is judged by.
struct Fault {
  int64_t before = 0;  // recoveries so far
  int64_t hit_ns = 0;
  bool is_certain = true;     // it breaks a group that there is
  bool had_no_group = false;  // the run was before its first step: a worker that dies there breaks no group
};

Status report_recovery(const ChaosOptions& options, const Fault& fault, std::ostream& out) {
  constexpr double kSlice = 0.5;  // a run that was before its first step is looked at this often
  const int64_t begin_ns = monotonic_ns();
  while (true) {
    const double left = options.patience - static_cast<double>(monotonic_ns() - begin_ns) / kNanosecondsPerSecond;
    const double wait = std::max(0.0, fault.had_no_group ? std::min(kSlice, left) : left);
    TRY_ASSIGN(const News news, await_news(options.folder, fault.before, wait));
    for (const Json& recovery : news.recoveries) out << describe_recovery(recovery, fault.hit_ns);
    if (!news.recoveries.empty()) return {};
    if (news.has_ended) return report_end(news, fault.hit_ns, out);
    if (const std::optional<int64_t> step = fault.had_no_group ? step_of_run(options.folder) : std::nullopt) {
      out << "  no group had formed yet; the run trains, at step " << *step << " " << since_fault(fault.hit_ns) << "\n";
      return {};
    }
    if (left <= 0) break;
  }
  if (!fault.is_certain) {
    out << "  the group did not break\n";
    return {};
  }
  return Error{ErrorCode::kRetry, "the run did not recover within " + exact_seconds(options.patience)};
}

bool has_no_group(const std::vector<RunningAgent>& agents) { return agents.front().status.at("phase") == "Starting"; }

// For a new agent of node 0. It learns of the earlier group from the other nodes; if no other node was in that group,
// it reports no recovery, and the only sign is that steps are committed again.
Status report_new_coordinator(const ChaosOptions& options, int64_t old_pid, int64_t hit_ns, std::ostream& out) {
  std::optional<int64_t> first_step;
  while (static_cast<double>(monotonic_ns() - hit_ns) < options.patience * kNanosecondsPerSecond) {
    std::this_thread::sleep_for(kPollInterval);
    const Result<Json> answer = ask_node(options.folder, 0, {{"command", "status"}});
    if (!answer.ok() && !find_agents(options.folder).ok()) return report_end({.has_ended = true}, hit_ns, out);
    if (!answer.ok() || answer->at("pid") == old_pid) continue;
    const Json& status = answer->at("status");
    if (status.at("phase") == "Complete") {
      return report_end({.has_ended = true, .exit_code = 0}, hit_ns, out);
    }
    if (status.at("phase") != "Running" || status.at("workers").empty()) continue;
    const int64_t step = status.at("workers").at(0).at("step");
    if (!first_step) first_step = step;
    if (step <= *first_step) continue;
    const Result<News> news = await_news(options.folder, 0, 0.0);
    if (news.ok() && !news->recoveries.empty()) out << describe_recovery(news->recoveries.front(), hit_ns);
    out << "  training again at step " << step << " after "
        << exact_seconds(static_cast<double>(monotonic_ns() - hit_ns) / kNanosecondsPerSecond)
        << ", with a new agent of node 0 (pid " << answer->at("pid") << ")\n";
    return {};
  }
  return Error{ErrorCode::kRetry, "the run did not recover within " + exact_seconds(options.patience)};
}

// ---- the faults ----

// When the signal was sent.
Result<int64_t> send_signal(int64_t pid, int signal) {
  const int64_t now_ns = monotonic_ns();
  if (::kill(static_cast<pid_t>(pid), signal) == 0) return now_ns;
  return invalid("process " + std::to_string(pid) + " cannot be signalled: " + std::strerror(errno));
}

std::string describe(const RunningRank& rank) {
  return "rank " + std::to_string(rank.rank) + " (pid " + std::to_string(rank.pid) + ", node " +
         std::to_string(rank.node) + ") at step " + std::to_string(rank.step);
}

Status kill_rank(const ChaosOptions& options, std::ostream& out) {
  TRY_ASSIGN(const std::vector<RunningAgent> agents, find_agents(options.folder));
  TRY_ASSIGN(const RunningRank target, find_rank(agents, options.rank));
  TRY_ASSIGN(const int64_t before, count_recoveries(options.folder));
  TRY_ASSIGN(const int64_t hit_ns, send_signal(target.pid, SIGKILL));
  out << "killed " << describe(target) << std::endl;
  return report_recovery(options, {.before = before, .hit_ns = hit_ns, .had_no_group = has_no_group(agents)}, out);
}

Status stop_rank(const ChaosOptions& options, std::ostream& out) {
  TRY_ASSIGN(const std::vector<RunningAgent> agents, find_agents(options.folder));
  TRY_ASSIGN(const RunningRank target, find_rank(agents, options.rank));
  TRY_ASSIGN(const int64_t before, count_recoveries(options.folder));
  const double seconds = options.seconds.value_or(0.0);
  TRY_ASSIGN(const int64_t hit_ns, send_signal(target.pid, SIGSTOP));
  out << "stopped " << describe(target) << (seconds > 0 ? " for " + exact_seconds(seconds) : " for good") << std::endl;
  ChaosOptions patience = options;
  if (seconds > 0) {
    wait_seconds(seconds);
    static_cast<void>(send_signal(target.pid, SIGCONT));  // its agent may have ended it meanwhile
    // A process that is continued before it was declared lost breaks nothing, so the wait is shorter.
    patience.patience = std::min(options.patience, kContinuedSeconds);
  }
  return report_recovery(
      patience, {.before = before, .hit_ns = hit_ns, .is_certain = seconds == 0, .had_no_group = has_no_group(agents)},
      out);
}

Status kill_agent(const ChaosOptions& options, std::ostream& out) {
  TRY_ASSIGN(const std::vector<RunningAgent> agents, find_agents(options.folder));
  TRY_ASSIGN(const RunningAgent target, find_node(agents, options.node));
  if (agents.size() == 1) return invalid("this run has only one agent, and nothing would restart it");
  TRY_ASSIGN(const int64_t before, count_recoveries(options.folder));
  TRY_ASSIGN(const int64_t hit_ns, send_signal(target.pid, SIGKILL));
  out << "killed the agent of node " << target.node << " (pid " << target.pid << ") with its workers" << std::endl;
  if (target.node == 0) return report_new_coordinator(options, target.pid, hit_ns, out);
  return report_recovery(options, {.before = before, .hit_ns = hit_ns, .had_no_group = has_no_group(agents)}, out);
}

// ---- the command line ----

struct FaultCommand {
  const char* name;
  const char* help;
  Status (*run)(const ChaosOptions&, std::ostream&);
  bool at_rank;  // true: it hits a rank (--rank); false: a node (--node)
  bool lasts;    // takes --seconds
};
constexpr FaultCommand kFaultCommands[] = {
    {"kill-rank", "kill a worker (SIGKILL): the last rank, or --rank", kill_rank, true, false},
    {"stop-rank", "stop a worker (SIGSTOP): the last rank, or --rank; for --seconds, or for good", stop_rank, true,
     true},
    {"kill-agent", "kill an agent with its workers: of the last node, or --node", kill_agent, false, false},
};

std::vector<std::string> fault_names() {
  std::vector<std::string> names;
  for (const FaultCommand& fault : kFaultCommands) names.emplace_back(fault.name);
  return names;
}

void declare(CLI::App& app, ChaosOptions& options) {
  app.require_subcommand(1);
  app.footer(
      "FOLDER is the run's folder, in which its agents have their sockets. Default: that of the run that was started\n"
      "last, in this folder or in one of its subfolders, else that of the newest lockstep launch.\n\n"
      "Example:\n"
      "  lockstep run WORKLOAD … --local_nodes 2 --nproc 2 &\n"
      "  lockstep chaos kill-rank --rank 3");
  const auto seconds_option = [](CLI::Option* option) {
    option->type_name("SECONDS")->check(CLI::Range(0.0, kControlSecondsMax).description(""));
    return option;
  };
  for (const FaultCommand& fault : kFaultCommands) {
    CLI::App* const command = app.add_subcommand(fault.name, fault.help);
    command->add_option("FOLDER", options.folder, "the run's folder")->type_name("");
    if (fault.at_rank) {
      command->add_option("--rank", options.rank, "which rank")
          ->type_name("R")
          ->check(CLI::Range(0, kRankMax).description(""));
    } else {
      command->add_option("--node", options.node, "which node")
          ->type_name("N")
          ->check(CLI::Range(0, kRankMax).description(""));
    }
    if (fault.lasts) seconds_option(command->add_option("--seconds", options.seconds, "for how long"));
    command->add_option("--count", options.count, "how many times")
        ->type_name("N")
        ->check(CLI::Range(1, kCountMax).description(""))
        ->capture_default_str();
    seconds_option(command->add_option("--every", options.every, "from the end of one fault to the next"))
        ->capture_default_str();
    seconds_option(command->add_option("--patience", options.patience, "how long the run may take to recover"))
        ->capture_default_str();
  }
}

Status repeat_fault(const FaultCommand& fault, ChaosOptions options, std::ostream& out) {
  if (options.folder.empty()) {
    Result<std::string> found = find_run_folder(".");
    const std::string programs = program_runs_folder();
    if (!found.ok() && !programs.empty()) {
      if (Result<std::string> program = find_run_folder(programs); program.ok()) found = std::move(program);
    }
    TRY_ASSIGN(options.folder, std::move(found));
  }
  for (int i = 0; i < options.count; ++i) {
    if (i > 0) wait_seconds(options.every);
    TRY(fault.run(options, out));
  }
  return {};
}

// The answers of an agent of another version may have other fields; then nlohmann/json throws.
Status run_fault_command(const FaultCommand& fault, const ChaosOptions& options, std::ostream& out) {
  try {
    return repeat_fault(fault, options, out);
  } catch (const Json::exception& e) {
    return Error{ErrorCode::kCorrupt, std::string("an agent's answer cannot be understood: ") + e.what()};
  }
}

}  // namespace

std::string describe_recovery(const Json& recovery, int64_t hit_ns) {
  const auto since = [hit_ns](int64_t ns) {
    return exact_seconds(static_cast<double>(ns - hit_ns) / kNanosecondsPerSecond);
  };
  const auto part = [&recovery](const char* name) {
    return recovery.at(name).is_number() ? exact_seconds(recovery.at(name).get<double>()) : std::string("unknown");
  };
  const int64_t redone = recovery.at("redoneSteps");
  return "  the group broke (" + recovery.at("cause").get<std::string>() + ") after " +
         since(recovery.at("brokenNanoseconds")) + "\n  all workers were ready " + part("respawnSeconds") +
         " later, the new group formed in " + part("formingSeconds") + ", the state was synced in " +
         part("syncSeconds") + " (" + recovery.at("origin").get<std::string>() + ")\n  next committed step " +
         std::to_string(recovery.at("step").get<int64_t>()) + " after " + since(recovery.at("committedNanoseconds")) +
         ", with " + std::to_string(recovery.at("worldSize").get<int>()) + " ranks\n  " + plural(redone, "step") +
         " redone, " + part("lostSeconds") + " of work lost\n";
}

CommandShape chaos_shape() {
  ChaosOptions options;
  CLI::App app;
  declare(app, options);
  return shape_of(app);
}

int chaos_command(const std::vector<std::string>& args, std::ostream& out, std::ostream& err) {
  const std::string word = args.empty() ? "" : args.front();
  const std::string problem = word.starts_with("-") ? "" : subcommand_problem(word, fault_names());
  if (!problem.empty()) {
    err << "lockstep chaos: " << problem << "; see lockstep chaos --help\n";
    return code_of(ExitCode::kUsage);
  }
  ChaosOptions options;
  CLI::App app("kill or stop a part of a run on this machine, and measure how long it takes to recover",
               "lockstep chaos");
  declare(app, options);
  if (const std::optional<int> code = parse_command(app, args, "see lockstep chaos " + word + " --help", out, err))
    return *code;
  const std::string name = app.get_subcommands().front()->get_name();
  for (const FaultCommand& fault : kFaultCommands) {
    if (name != fault.name) continue;
    const Status status = run_fault_command(fault, options, out);
    if (status.ok()) return 0;
    err << "lockstep chaos: " << status.error().message << "\n";
    const bool is_late = status.error().code == ErrorCode::kRetry;
    return static_cast<int>(is_late ? ExitCode::kTimeout : ExitCode::kUsage);
  }
  return code_of(ExitCode::kUsage);
}

}  // namespace lockstep
