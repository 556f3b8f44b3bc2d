#include "runner/cli/launch_command.h"

#include <pwd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <optional>
#include <string_view>
#include <utility>

#include "runner/agent/program_command.h"
#include "runner/base/plural.h"
#include "runner/cli/agent_start.h"
#include "runner/cli/parse_command.h"
#include "runner/config/flag_table.h"
#include "runner/contract/env_names.h"
#include "runner/contract/exit_code.h"

namespace lockstep {
namespace {

constexpr const char* kHelp =
    R"(lockstep launch - starts any program as the ranks of a run, restarts it, and says why it failed

Usage:
  lockstep launch [flags] train.py [arguments]       as torchrun: with python in front
  lockstep launch [flags] -m package.module [arguments]
  lockstep launch [flags] -- python -u train.py …    any command, Python or not

Each rank gets torchrun's variables (RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR, …). When a rank is lost, all ranks are
started again, and the program goes on from its own checkpoint. Dashes may stand for underscores in flags.

Flags:
)";
constexpr const char* kHelpOfTorchrun = R"(
Of torchrun's flags --standalone, --rdzv_endpoint, --rdzv_id, --no_python, -m and --module are understood, too; its
others are accepted and have no effect, which is said.
)";

enum class Meaning { kNothing, kCoordinator, kRunId, kModule, kNoPython, kNoZygote, kIgnored };
struct ForeignFlag {
  std::string_view name;
  bool takes_value;
  Meaning meaning;
};
// torchrun's flags that are not in the table of ours, and --no_zygote.
constexpr std::array kForeignFlags = {
    ForeignFlag{"standalone", false, Meaning::kNothing},
    ForeignFlag{"rdzv_endpoint", true, Meaning::kCoordinator},
    ForeignFlag{"rdzv_id", true, Meaning::kRunId},
    ForeignFlag{"module", false, Meaning::kModule},
    ForeignFlag{"no_python", false, Meaning::kNoPython},
    ForeignFlag{"no_zygote", false, Meaning::kNoZygote},
    ForeignFlag{"rdzv_backend", true, Meaning::kIgnored},
    ForeignFlag{"rdzv_conf", true, Meaning::kIgnored},
    ForeignFlag{"role", true, Meaning::kIgnored},
    ForeignFlag{"monitor_interval", true, Meaning::kIgnored},
    ForeignFlag{"start_method", true, Meaning::kIgnored},
    ForeignFlag{"run_path", false, Meaning::kIgnored},
    ForeignFlag{"log_dir", true, Meaning::kIgnored},
    ForeignFlag{"redirects", true, Meaning::kIgnored},
    ForeignFlag{"tee", true, Meaning::kIgnored},
    ForeignFlag{"local_ranks_filter", true, Meaning::kIgnored},
    ForeignFlag{"local_addr", true, Meaning::kIgnored},
    ForeignFlag{"logs_specs", true, Meaning::kIgnored},
    ForeignFlag{"numa_binding", true, Meaning::kIgnored},
    ForeignFlag{"shutdown_timeout", true, Meaning::kIgnored},
    ForeignFlag{"log_line_prefix_template", true, Meaning::kIgnored},
    ForeignFlag{"signals_to_handle", true, Meaning::kIgnored},
};

struct Launcher {
  std::string_view name;
  std::string_view instead;
};
// Each of them would start all ranks again in every rank.
constexpr std::array kLaunchers = {
    Launcher{"torchrun", "put lockstep launch in its place"},
    Launcher{"accelerate", "leave `accelerate launch` out: lockstep launch train.py"},
    Launcher{"deepspeed", "leave it out: lockstep launch train.py --deepspeed"},
    Launcher{"mpirun", "leave it out, and give --nproc, or start lockstep launch under it with one task per node"},
    Launcher{"mpiexec", "leave it out, and give --nproc, or start lockstep launch under it with one task per node"},
    Launcher{"srun", "put lockstep launch behind it: srun --ntasks-per-node=1 lockstep launch …"},
};

std::string with_underscores(std::string name) {
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

class Parser {
 public:
  Parser(const std::vector<std::string>& arguments, const Environment& environment)
      : arguments_(arguments), environment_(environment) {}

  Result<LaunchLine> run() {
    while (at_ < arguments_.size()) {
      const std::string word = arguments_[at_++];
      if (word == "--") {
        has_whole_command_ = true;
        break;
      }
      if (word == "-m") {
        is_module_ = true;
      } else if (word.starts_with("--") || word == "-r" || word == "-t") {
        TRY(take_flag(word));
      } else if (word.starts_with("-")) {
        return invalid("unknown flag " + word + "; see lockstep launch --help");
      } else {
        --at_;
        break;
      }
    }
    TRY(take_program());
    return std::move(line_);
  }

 private:
  Status take_flag(const std::string& word) {
    const size_t equals = word.find('=');
    std::string name = with_underscores(word.substr(2, equals == std::string::npos ? std::string::npos : equals - 2));
    if (word == "-r") name = "redirects";
    if (word == "-t") name = "tee";
    std::optional<std::string> value;
    if (equals != std::string::npos) value = word.substr(equals + 1);
    const Flag* const flag = find_flag(table_, name);
    if (flag != nullptr) return take_own_flag(*flag, value);
    const auto foreign = std::find_if(kForeignFlags.begin(), kForeignFlags.end(),
                                      [&name](const ForeignFlag& known) { return known.name == name; });
    if (foreign == kForeignFlags.end()) {
      const std::string nearest = nearest_flag(table_, name);
      return invalid("unknown flag --" + name + (nearest.empty() ? "" : "; did you mean --" + nearest + "?") +
                     " Flags of the program come after its name; see lockstep launch --help");
    }
    if (foreign->takes_value && !value) {
      if (at_ == arguments_.size()) return invalid("--" + name + " needs a value");
      value = arguments_[at_++];
    }
    return take_foreign_flag(*foreign, value.value_or("true"));
  }

  Status take_own_flag(const Flag& flag, std::optional<std::string> value) {
    if (!value && !flag.is_bool && at_ < arguments_.size()) value = arguments_[at_++];
    if (!value && !flag.is_bool) return invalid("--" + flag.name + " needs a value (" + flag.expects + ")");
    std::string text = value.value_or("true");
    // torchrun's words: one rank per GPU, or per core.
    if (flag.name == "nproc" && text == "gpu") text = "auto";
    if (flag.name == "nproc" && text == "cpu") text = std::to_string(std::max(1U, cores()));
    TRY(set_flag(flag, text, "", line_.config));
    line_.config.flags.push_back({.name = flag.name, .value = text, .identity = text, .source = FlagSource::kUser});
    line_.flags.push_back("--" + flag.name + "=" + text);
    return {};
  }

  Status take_foreign_flag(const ForeignFlag& flag, const std::string& value) {
    switch (flag.meaning) {
      case Meaning::kNothing:
        break;
      case Meaning::kCoordinator:
        if (line_.config.launch.coordinator.empty() && !value.empty()) {
          return take_own_flag(*find_flag(table_, "coordinator"),
                               value.find(':') == std::string::npos ? value + ":29400" : value);
        }
        break;
      case Meaning::kRunId:
        line_.run_id = value;
        break;
      case Meaning::kModule:
        is_module_ = true;
        break;
      case Meaning::kNoPython:
        has_whole_command_ = true;
        break;
      case Meaning::kNoZygote:
        line_.uses_zygote = false;
        line_.flags.emplace_back("--no_zygote");
        break;
      case Meaning::kIgnored:
        line_.ignored.push_back("--" + std::string(flag.name));
    }
    return {};
  }

  Status take_program() {
    line_.program.assign(arguments_.begin() + static_cast<std::ptrdiff_t>(at_), arguments_.end());
    if (line_.program.empty()) {
      return invalid("no program given: expected lockstep launch [flags] train.py …, or -- and any command");
    }
    const std::string& first = line_.program.front();
    const std::string name = std::filesystem::path(first).filename().string();
    const auto launcher = std::find_if(kLaunchers.begin(), kLaunchers.end(),
                                       [&name](const Launcher& known) { return known.name == name; });
    if (launcher != kLaunchers.end()) {
      return invalid(name + " starts ranks itself, and so does lockstep launch: " + std::string(launcher->instead));
    }
    if (is_module_) {
      line_.program.insert(line_.program.begin(), {python(), "-m"});
    } else if (!has_whole_command_ && is_script(first)) {
      line_.program.insert(line_.program.begin(), python());
    }
    return {};
  }

  // As torchrun, which runs any file with Python; but a program that can be executed is run as it is.
  [[nodiscard]] bool is_script(const std::string& word) const {
    std::error_code error;
    if (word.ends_with(".py")) return true;
    if (!std::filesystem::exists(word, error)) return false;
    return !find_program(word.find('/') == std::string::npos ? "./" + word : word, environment_).ok();
  }

  [[nodiscard]] std::string python() const { return find_program("python3", environment_).ok() ? "python3" : "python"; }

  static unsigned cores() { return static_cast<unsigned>(std::max(1L, ::sysconf(_SC_NPROCESSORS_ONLN))); }

  const std::vector<std::string>& arguments_;
  const Environment& environment_;
  std::vector<Flag> table_ = launch_flag_table();
  size_t at_ = 0;
  bool is_module_ = false;
  bool has_whole_command_ = false;
  LaunchLine line_;
};

std::string launch_help() {
  std::string text = kHelp;
  for (const Flag& flag : launch_flag_table()) {
    std::string name = "  --" + flag.name;
    for (const std::string& alias : flag.aliases) name += ", --" + alias;
    const std::string value = flag.get(RunConfig{});
    text += name + "  {" + flag.expects + "}\n      " + flag.help + (value.empty() ? "" : " [" + value + "]") + "\n";
  }
  return text + "  --no_zygote\n      start each rank from the beginning, also where the program is Python\n" +
         kHelpOfTorchrun;
}

Account own_account() {
  const uid_t id = ::getuid();
  return {.id = id, .has_name = ::getpwuid(id) != nullptr};  // no other thread runs yet
}

// The first folder that this user may write to; empty: none.
std::string temporary_folder() {
  std::error_code error;
  for (const std::filesystem::path& place :
       {std::filesystem::temp_directory_path(error), std::filesystem::path("/dev/shm")}) {
    if (!place.empty() && ::access(place.c_str(), W_OK) == 0) return place;
  }
  return "";
}

// Where what programs import is kept between runs.
std::string remember_folder(const Environment& environment) {
  const std::string cache = variable(environment, "XDG_CACHE_HOME");
  const std::string home = variable(environment, "HOME");
  if (!cache.empty()) return cache + "/lockstep/imports";
  return home.empty() ? "" : home + "/.cache/lockstep/imports";
}

}  // namespace

Result<LaunchLine> parse_launch_line(const std::vector<std::string>& arguments, const Environment& environment) {
  return Parser(arguments, environment).run();
}

int launch_command(const std::vector<std::string>& arguments) {
  if (!arguments.empty() && (arguments.front() == "--help" || arguments.front() == "-h")) {
    std::fputs(launch_help().c_str(), stdout);
    return 0;
  }
  AgentRequest request;
  request.environment = read_environment();
  Result<LaunchLine> line = parse_launch_line(arguments, request.environment);
  if (!line.ok()) return fail(line.error());
  const Result<std::string> program = find_program(line->program.front(), request.environment);
  if (!program.ok()) return fail(program.error());
  line->program.front() = *program;
  if (!line->ignored.empty()) {
    request.remark = "note: " + joined(line->ignored, ", ") + ": torchrun's, without effect here";
  }
  request.arguments = line->flags;
  request.config = std::move(line->config);
  // For messages, /status and the page: the script's name.
  const std::optional<PythonCommand> python = python_command(line->program);
  if (python && python->program.front() != "-m" && !std::filesystem::exists(python->program.front())) {
    return fail(Error{ErrorCode::kNotFound, "no program " + python->program.front() + " here (" +
                                                std::filesystem::current_path().string() +
                                                "): expected a Python script"});
  }
  const std::string shown = python ? python->program[python->program.front() == "-m" ? 1 : 0] : *program;
  request.config.workload = std::filesystem::path(shown).filename().string();
  ProgramCommand command;
  command.words = std::move(line->program);
  command.environment = program_environment(request.environment, own_account(), temporary_folder());
  command.run_id = line->run_id;
  command.uses_zygote = line->uses_zygote;
  command.remember_folder = remember_folder(command.environment);
  request.program = std::move(command);
  return start_agent_of(std::move(request));
}

}  // namespace lockstep
