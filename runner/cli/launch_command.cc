#include "runner/cli/launch_command.h"

#include <pwd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "runner/agent/program_command.h"
#include "runner/agent/worker_process.h"
#include "runner/base/file_system.h"
#include "runner/base/parse_number.h"
#include "runner/base/plural.h"
#include "runner/base/random_hex.h"
#include "runner/base/trimmed.h"
#include "runner/cli/agent_start.h"
#include "runner/cli/parse_command.h"
#include "runner/cli/torchrun_flags.h"
#include "runner/config/flag_table.h"
#include "runner/contract/env_names.h"
#include "runner/contract/exit_code.h"
#include "runner/launch/world.h"

namespace lockstep {
namespace {

constexpr const char* kHelp =
    R"(lockstep launch - starts any program as the ranks of a run, restarts it, and says why it failed

Usage:
  lockstep launch [flags] train.py [arguments]       as torchrun: with python in front
  lockstep launch [flags] -m package.module [arguments]
  lockstep launch [flags] -- python -u train.py …    any command, Python or not

Each rank gets torchrun's variables (RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR, …). When a rank is lost, all ranks are
started again, and the program goes on from its own checkpoint. Dashes may stand for underscores in flags. The value of
a flag of torchrun that is not given may come from its variable (PET_NNODES, PET_LOG_DIR, …).

Flags:
)";
struct Launcher {
  std::string_view name;
  std::string_view instead;
};
// Each of them would start all ranks again in every rank.
constexpr std::string_view kPutInItsPlace = "put lockstep launch in its place";
constexpr std::array kLaunchers = {
    Launcher{"torchrun", kPutInItsPlace},
    Launcher{"accelerate", "leave `accelerate launch` and its flags out: lockstep launch train.py"},
    Launcher{"deepspeed", "leave it out: lockstep launch train.py --deepspeed"},
    Launcher{"mpirun", "leave it out, and give --nproc, or start lockstep launch under it with one task per node"},
    Launcher{"mpiexec", "leave it out, and give --nproc, or start lockstep launch under it with one task per node"},
    Launcher{"horovodrun", "leave it out, and give --nproc"},
    Launcher{"srun", "put lockstep launch behind it: srun --ntasks-per-node=1 lockstep launch …"},
    Launcher{"lockstep", "type what follows it alone"},
};
constexpr std::array kLauncherModules = {
    Launcher{"torch.distributed.run", kPutInItsPlace},
    Launcher{"torch.distributed.launch", kPutInItsPlace},
    Launcher{"accelerate.commands.launch", "leave it and its flags out: lockstep launch train.py"},
    Launcher{"accelerate.commands.accelerate_cli", "leave it and its flags out: lockstep launch train.py"},
    Launcher{"deepspeed.launcher.runner", "leave it out: lockstep launch train.py --deepspeed"},
    Launcher{"deepspeed.launcher.launch", "leave it out: lockstep launch train.py --deepspeed"},
    Launcher{"horovod.runner", "leave it out, and give --nproc"},
};
// They start the command that they are given, which may be a launcher.
constexpr std::array<std::string_view, 12> kWrappers = {"uv",  "poetry", "pipenv", "pdm",     "hatch", "rye",
                                                        "env", "nice",   "nohup",  "numactl", "time",  "conda"};

template <size_t N>
const Launcher* find_launcher(const std::array<Launcher, N>& launchers, std::string_view name) {
  const auto it = std::find_if(launchers.begin(), launchers.end(),
                               [name](const Launcher& launcher) { return launcher.name == name; });
  return it == launchers.end() ? nullptr : &*it;
}

// A launcher that this command starts: by its name, as a module of Python, or behind a wrapper. Null: none.
const Launcher* launcher_in(const std::vector<std::string>& words) {
  const bool is_wrapped = std::find(kWrappers.begin(), kWrappers.end(), base_name(words.front())) != kWrappers.end();
  for (size_t at = 0; at < words.size(); ++at) {
    const std::string name = base_name(words[at]);
    if (name.ends_with(".py")) return nullptr;  // its arguments follow
    if (const Launcher* const launcher = find_launcher(kLaunchers, name)) return launcher;
    if (name.starts_with("python")) {
      for (size_t next = at + 1; next < words.size() && words[next].starts_with("-"); ++next) {
        if (!words[next].starts_with("-m")) continue;
        if (words[next] != "-m") return find_launcher(kLauncherModules, std::string_view(words[next]).substr(2));
        return next + 1 < words.size() ? find_launcher(kLauncherModules, words[next + 1]) : nullptr;
      }
      return nullptr;
    }
    if (!is_wrapped) return nullptr;
  }
  return nullptr;
}

std::string with_underscores(std::string name) {
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

std::vector<std::string> split_at_commas(std::string_view text) {
  std::vector<std::string> parts;
  while (true) {
    const std::string_view part = text.substr(0, text.find(','));
    parts.emplace_back(part);
    if (part.size() == text.size()) return parts;
    text.remove_prefix(part.size() + 1);
  }
}

// A comma that belongs to a word is written twice.
std::vector<std::string> split_filters(std::string_view text) {
  std::vector<std::string> filters(1);
  for (size_t at = 0; at < text.size(); ++at) {
    if (text[at] != ',') {
      filters.back() += text[at];
    } else if (at + 1 < text.size() && text[at + 1] == ',') {
      filters.back() += text[at++];
    } else {
      filters.emplace_back();
    }
  }
  std::erase_if(filters, [](const std::string& filter) { return filter.empty(); });
  return filters;
}

// 0: there is no such signal.
int signal_of(std::string_view name) {
  for (int number = 1; number < SIGRTMIN; ++number) {
    const char* const known = ::sigabbrev_np(number);
    if (known != nullptr && name == std::string("SIG") + known) return number;
  }
  return 0;
}

unsigned cores() { return static_cast<unsigned>(std::max(1L, ::sysconf(_SC_NPROCESSORS_ONLN))); }

// Where node 0's agent listens when only its host is known. Not where rank 0 serves its store.
std::string coordinator_at(const std::string& host, std::optional<int> master_port) {
  const int port = master_port == kDefaultCoordinatorPort ? kDefaultCoordinatorPort + 1 : kDefaultCoordinatorPort;
  return host + ":" + std::to_string(port);
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
      if (word.starts_with("--")) {
        TRY(parse_flag(word));
      } else if (word.starts_with("-") && word.size() > 1) {
        TRY(parse_letter(word));
      } else {
        --at_;
        break;
      }
    }
    TRY(read_variables());
    settle();
    TRY(read_program());
    return std::move(line_);
  }

 private:
  // A flag or a variable whose value is read: its name for messages.
  struct Source {
    std::string name;  // "--tee", "PET_TEE"
    bool is_flag = true;
    [[nodiscard]] Error wrong(const std::string& value, const std::string& expected) const {
      const std::string found = value.empty() ? "nothing" : "\"" + value + "\"";
      return invalid(name + ": found " + found + ", expected " + expected);
    }
  };

  // "--name" or "--name=value"
  Status parse_flag(const std::string& word) {
    const size_t equals = word.find('=');
    const std::string name = with_underscores(word.substr(2, equals == std::string::npos ? equals : equals - 2));
    std::optional<std::string> value;
    if (equals != std::string::npos) value = word.substr(equals + 1);
    if (name == "no_zygote") {
      line_.command.uses_zygote = false;
      line_.flags.emplace_back("--no_zygote");
      return {};
    }
    if (name == "recover") {
      line_.command.recovers = true;
      line_.flags.emplace_back("--recover");
      return {};
    }
    if (name == "spares") return parse_spares(value);
    const TorchrunFlag* const known = find_torchrun_flag(name);
    if (known != nullptr && known->meaning != TorchrunMeaning::kOurFlag) return parse_torchrun_flag(*known, value);
    const Flag* const flag = find_flag(table_, name);
    if (flag != nullptr) return parse_own_flag(*flag, name, value);
    const std::string nearest = nearest_flag(table_, name);
    return invalid("unknown flag --" + name + (nearest.empty() ? "" : "; did you mean --" + nearest + "?") +
                   " Flags of the program come after its name; see lockstep launch --help");
  }

  Status parse_spares(std::optional<std::string> value) {
    if (!value && at_ < arguments_.size()) value = arguments_[at_++];
    const std::optional<int> spares = parse_number<int>(value.value_or(""));
    if (!spares || *spares < 0 || *spares > kSparesMax) {
      return Source{.name = "--spares"}.wrong(value.value_or(""), "a number from 0 to " + std::to_string(kSparesMax));
    }
    line_.command.spares = *spares;
    line_.flags.push_back("--spares=" + *value);
    return {};
  }

  // "-m", "-t 3", "-t3", "-t=3"
  Status parse_letter(const std::string& word) {
    const TorchrunFlag* const flag = find_torchrun_flag(word[1]);
    if (flag == nullptr || (!flag->takes_value && word.size() > 2)) {
      return invalid("unknown flag " + word + "; see lockstep launch --help");
    }
    std::optional<std::string> value;
    if (word.size() > 2) value = word.substr(word[2] == '=' ? 3 : 2);
    return parse_torchrun_flag(*flag, value);
  }

  Status parse_own_flag(const Flag& flag, const std::string& name, std::optional<std::string> value) {
    if (!value && !flag.is_bool && at_ < arguments_.size()) value = arguments_[at_++];
    if (!value && !flag.is_bool) return invalid("--" + name + " needs a value (" + flag.expects + ")");
    return set_own_flag(flag, {.name = "--" + name}, value.value_or("true"));
  }

  Status set_own_flag(const Flag& flag, const Source& source, std::string text) {
    if (flag.name == "nproc") {
      line_.nproc = text == "gpu" ? NprocWord::kGpu : text == "auto" ? NprocWord::kAuto : NprocWord::kNumber;
      // The agents of --local_nodes get the number that was made of it.
      if (line_.nproc != NprocWord::kNumber) {
        line_.config.launch.nproc.reset();
        return {};
      }
      if (text == "cpu") text = std::to_string(cores());
    }
    RunConfig& config = line_.config;
    if (!flag.set(text, config)) {
      return source.wrong(text, flag.expects + (flag.name == "nproc" ? ", gpu or cpu" : ""));
    }
    config.flags.push_back({.name = flag.name, .value = text, .identity = text, .source = FlagSource::kUser});
    line_.flags.push_back("--" + flag.name + "=" + text);
    return {};
  }

  Status parse_torchrun_flag(const TorchrunFlag& flag, std::optional<std::string> value) {
    const Source source{.name = "--" + std::string(flag.name)};
    given_.insert(flag.name);
    if (flag.takes_value && !value) {
      if (at_ == arguments_.size()) return invalid(source.name + " needs a value");
      value = arguments_[at_++];
    }
    return set_torchrun_flag(flag, source, value.value_or("true"));
  }

  // PET_NAME, where the flag is not given. torchrun's own rule.
  Status read_variables() {
    for (const TorchrunFlag& flag : torchrun_flags()) {
      const Source source{.name = variable_of(flag), .is_flag = false};
      const std::string value = variable(environment_, source.name);
      if (!flag.has_variable || value.empty() || given_.contains(flag.name)) continue;
      if (flag.meaning == TorchrunMeaning::kOurFlag) {
        const Flag* const own = find_flag(table_, flag.name);
        const bool is_given_as_flag = is_given(line_.config, own->name) || (own->name == "nproc" && line_.nproc);
        if (!is_given_as_flag) TRY(set_own_flag(*own, source, value));
      } else {
        TRY(set_torchrun_flag(flag, source, value));
      }
    }
    const std::string prefix = variable(environment_, env::kTorchPrefixTemplate);
    if (line_.command.output.prefix.empty()) line_.command.output.prefix = prefix;
    return {};
  }

  Status set_torchrun_flag(const TorchrunFlag& flag, const Source& source, const std::string& value) {
    bool is_on = true;
    if (!flag.takes_value && !parse_bool_word(value, is_on)) return source.wrong(value, "1 or 0");
    switch (flag.meaning) {
      case TorchrunMeaning::kOurFlag:
        break;
      case TorchrunMeaning::kStandalone:
        line_.is_standalone = is_on;
        return {};
      case TorchrunMeaning::kEndpoint:
        return set_endpoint(source, value);
      case TorchrunMeaning::kModule:
        is_module_ = is_on && (source.is_flag || !has_whole_command_);
        return {};
      case TorchrunMeaning::kNoPython:
        is_without_python_ = is_on;
        return {};
      case TorchrunMeaning::kRunPath:
        is_run_path_ = is_on;
        return {};
      case TorchrunMeaning::kRunId:
        line_.command.run_id = value;
        break;
      case TorchrunMeaning::kRole:
        line_.command.role = value;
        break;
      case TorchrunMeaning::kLogDir:
        line_.command.output.log_dir = value;
        break;
      case TorchrunMeaning::kRedirects:
      case TorchrunMeaning::kTee: {
        Result<StreamChoice> streams = parse_streams(value);
        if (!streams.ok()) return invalid(source.name + ": found " + streams.error().message);
        (flag.meaning == TorchrunMeaning::kTee ? line_.command.output.tee : line_.command.output.redirects) =
            std::move(*streams);
        break;
      }
      case TorchrunMeaning::kShownRanks:
        TRY(set_shown_ranks(source, value));
        break;
      case TorchrunMeaning::kPrefix:
        line_.command.output.prefix = value;
        break;
      case TorchrunMeaning::kDuplicateOut:
        line_.command.output.duplicate_out = split_filters(value);
        break;
      case TorchrunMeaning::kDuplicateErr:
        line_.command.output.duplicate_err = split_filters(value);
        break;
      case TorchrunMeaning::kSignals:
        TRY(set_signals(source, value));
        break;
      case TorchrunMeaning::kLocalAddress:
        line_.command.local_address = value;
        break;
      case TorchrunMeaning::kVirtualLocalRank:
        line_.command.virtual_local_rank = is_on;
        break;
      case TorchrunMeaning::kIgnored:
        if (flag.help.empty()) {
          line_.ignored.push_back(source.name);
        } else {
          line_.remarks.push_back(source.name + ": " + std::string(flag.help));
        }
        return {};
      case TorchrunMeaning::kRefused:
        return invalid(source.name + " is not known here: " + std::string(flag.help));
    }
    line_.flags.push_back("--" + std::string(flag.name) + "=" + value);
    return {};
  }

  Status set_endpoint(const Source& source, const std::string& value) {
    endpoint_.clear();
    if (value.empty()) return {};
    const size_t colon = value.rfind(':');
    const bool has_port = colon != std::string::npos && value.find(']', colon) == std::string::npos;
    if (!has_port) {
      endpoint_ = coordinator_at(value, std::nullopt);
      return {};
    }
    const std::optional<int> port = parse_number<int>(std::string_view(value).substr(colon + 1));
    if (colon == 0 || !port || *port < 0 || *port > 65535) {
      return source.wrong(value, "HOST or HOST:PORT, where node 0's agent listens");
    }
    // Port 0 stands for any that is free: there is one node alone.
    if (*port > 0) endpoint_ = value;
    return {};
  }

  Status set_shown_ranks(const Source& source, const std::string& value) {
    line_.command.output.shown.clear();
    if (value.empty()) return {};
    for (const std::string& text : split_at_commas(value)) {
      const std::optional<int> rank = parse_number<int>(text);
      if (!rank || *rank < 0) return source.wrong(value, "local ranks with commas between them: 0,1,2");
      line_.command.output.shown.push_back(*rank);
    }
    return {};
  }

  Status set_signals(const Source& source, const std::string& value) {
    line_.command.signals.clear();
    for (const std::string& name : split_at_commas(value)) {
      const int number = signal_of(trimmed(name));
      if (number == 0 || number == SIGKILL || number == SIGSTOP || number == SIGCHLD) {
        return source.wrong(value, "names of signals that a program can handle: SIGTERM,SIGINT,SIGUSR1");
      }
      line_.command.signals.push_back(number);
    }
    line_.command.signal_names = value;
    return {};
  }

  // The coordinator: --coordinator, else --rdzv_endpoint, else the host of --master_addr. --log_dir /dev/null means no
  // files, as torchrun has it.
  void settle() {
    OutputOptions& output = line_.command.output;
    if (output.log_dir == "/dev/null") {
      output.log_dir.clear();
      output.redirects = output.tee = {};
    }
    LaunchOptions& launch = line_.config.launch;
    if (!launch.coordinator.empty() || line_.is_standalone) return;
    std::string coordinator = endpoint_;
    if (coordinator.empty() && !launch.master_addr.empty()) {
      coordinator = coordinator_at(launch.master_addr, launch.master_port);
    }
    if (coordinator.empty()) return;
    launch.coordinator = coordinator;
    line_.flags.push_back("--coordinator=" + coordinator);
  }

  Status read_program() {
    line_.command.words.assign(arguments_.begin() + static_cast<std::ptrdiff_t>(at_), arguments_.end());
    if (line_.command.words.empty()) {
      return invalid("no program given: expected lockstep launch [flags] train.py …, or -- and any command");
    }
    const std::string first = line_.command.words.front();
    if (is_module_ && is_without_python_)
      return invalid("--module and --no_python contradict each other: leave out one");
    if (is_module_) {
      line_.command.words.insert(line_.command.words.begin(), {python(), "-u", "-m"});
    } else if (!has_whole_command_ && (is_run_path_ || (!is_without_python_ && is_script(first)))) {
      line_.command.words.insert(line_.command.words.begin(), {python(), "-u"});
    }
    if (const Launcher* const launcher = launcher_in(line_.command.words)) {
      return invalid(std::string(launcher->name) +
                     " starts ranks itself, and so does lockstep launch: " + std::string(launcher->instead));
    }
    return {};
  }

  // As torchrun, which runs any file with Python; but a program that can be executed is run as it is, and one that
  // names another interpreter in its first line is not Python.
  [[nodiscard]] bool is_script(const std::string& word) const {
    std::error_code error;
    if (word.ends_with(".py")) return true;
    if (!std::filesystem::exists(word, error)) return false;
    if (find_program(word.find('/') == std::string::npos ? "./" + word : word, environment_).ok()) return false;
    std::string first_line;
    std::getline(std::ifstream(word), first_line);
    return !first_line.starts_with("#!") || first_line.find("python") != std::string::npos;
  }

  // torchrun's own variable, or the first on PATH.
  [[nodiscard]] std::string python() const {
    if (const std::string named = variable(environment_, "PYTHON_EXEC"); !named.empty()) return named;
    return find_program("python3", environment_).ok() ? "python3" : "python";
  }

  const std::vector<std::string>& arguments_;
  const Environment& environment_;
  std::vector<Flag> table_ = launch_flag_table();
  size_t at_ = 0;
  std::set<std::string_view> given_;  // of torchrun's flags
  std::string endpoint_;
  bool is_module_ = false;
  bool is_without_python_ = false;
  bool is_run_path_ = false;
  bool has_whole_command_ = false;
  LaunchLine line_;
};

std::string launch_help() {
  std::string text = kHelp;
  for (const Flag& flag : launch_flag_table()) {
    std::string name = "  --" + flag.name;
    for (const std::string& alias : flag.aliases) name += ", --" + alias;
    std::string value = flag.get(RunConfig{});
    if (flag.name == "nproc") value = "1";
    text += name + "  {" + flag.expects + (flag.name == "nproc" ? ", gpu or cpu" : "") + "}\n      " + flag.help +
            (value.empty() ? "" : " [" + value + "]") + "\n";
  }
  text +=
      "  --recover\n      a program of Hugging Face's Trainer, unchanged, keeps its state: a lost rank costs one new "
      "rank\n"
      "  --no_zygote\n      start each rank from the beginning, also where the program is Python\n"
      "  --spares  {a number from 0 to 64}\n      processes forked ahead on each node: a restart takes half of the "
      "time, "
      "and each holds some memory [0]\n\nFlags of torchrun:\n";
  std::string ignored;
  std::string refused;
  for (const TorchrunFlag& flag : torchrun_flags()) {
    const std::string name = "--" + std::string(flag.name);
    if (flag.meaning == TorchrunMeaning::kIgnored) {
      ignored += (ignored.empty() ? "" : ", ") + name;
    } else if (flag.meaning == TorchrunMeaning::kRefused) {
      refused += (refused.empty() ? "" : ", ") + name;
    } else if (flag.meaning != TorchrunMeaning::kOurFlag) {
      text += "  " + name + (flag.letter == 0 ? "" : std::string(", -") + flag.letter) + "\n      " +
              std::string(flag.help) + "\n";
    }
  }
  return text + "\nAccepted without effect, which is said: " + ignored +
         "\nRefused, with what to do in their place: " + refused + "\n";
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

// --nproc, of which a word or nothing was given.
Status choose_nproc(LaunchLine& line, const Environment& environment) {
  LaunchOptions& launch = line.config.launch;
  if (!line.nproc) {
    // The operator says it to its pods.
    if (variable(environment, env::kNprocPerNode).empty()) launch.nproc = 1;
    return {};
  }
  if (*line.nproc == NprocWord::kNumber) return {};
  const int gpus = count_visible_gpus(environment);
  if (gpus > 0) {
    launch.nproc = std::max(1, gpus / launch.local_nodes.value_or(1));
  } else if (*line.nproc == NprocWord::kGpu) {
    return Error{ErrorCode::kUnavailable,
                 "--nproc gpu, but no GPU is visible: look at nvidia-smi and CUDA_VISIBLE_DEVICES, or give a number"};
  } else {
    launch.nproc = static_cast<int>(cores());
  }
  return {};
}

// "12345678-1234-4123-8123-123456789abc", as torchrun names a run of --standalone.
std::string random_run_id() {
  return random_hex(8) + "-" + random_hex(4) + "-4" + random_hex(3) + "-8" + random_hex(3) + "-" + random_hex(12);
}

// A script that does not exist, or a folder without a program, is said before anything is started.
Status check_script(const std::vector<std::string>& words) {
  size_t at = 1;
  while (at < words.size() && words[at].starts_with("-")) {
    if (words[at] != "-u") return {};  // a module, or another option of Python's: Python checks it
    ++at;
  }
  if (!base_name(words.front()).starts_with("python") || at == words.size()) return {};
  const std::filesystem::path script = words[at];
  std::error_code error;
  if (!std::filesystem::exists(script, error)) {
    return Error{ErrorCode::kNotFound, "no program " + words[at] + " here (" +
                                           std::filesystem::current_path(error).string() +
                                           "): expected a Python script"};
  }
  if (!std::filesystem::is_directory(script, error) || std::filesystem::exists(script / "__main__.py", error))
    return {};
  return invalid(words[at] + " is a folder without a __main__.py: name the script in it");
}

// What the machine adds to the program that a command line names.
Status complete_command(LaunchLine& line, const Environment& environment) {
  ProgramCommand& command = line.command;
  TRY(check_script(command.words));
  TRY_ASSIGN(command.words.front(), find_program(command.words.front(), environment));
  if (line.is_standalone) {
    command.run_id = random_run_id();
    line.flags.push_back("--rdzv_id=" + command.run_id);
  }
  command.environment = program_environment(environment, own_account(), temporary_folder());
  command.remember_folder = remember_folder(command.environment);
  // One rank that is shown alone, on a terminal, is there to be looked at with a debugger. A run that is looked at is
  // not started again.
  if (command.output.shown.size() == 1 && !line.config.launch.local_nodes && is_in_foreground()) {
    command.terminal_rank = command.output.shown.front();
    command.uses_zygote = false;
    if (!is_given(line.config, "max_restarts")) line.config.launch.max_restarts = 0;
  }
  return {};
}

}  // namespace

Result<LaunchLine> parse_launch_line(const std::vector<std::string>& arguments, const Environment& environment) {
  return Parser(arguments, environment).run();
}

std::string remember_folder(const Environment& environment) {
  const std::string cache = variable(environment, "XDG_CACHE_HOME");
  const std::string home = variable(environment, "HOME");
  if (!cache.empty()) return cache + "/lockstep/imports";
  return home.empty() ? "" : home + "/.cache/lockstep/imports";
}

int launch_command(FileSystem& fs, const std::vector<std::string>& arguments) {
  if (!arguments.empty() && (arguments.front() == "--help" || arguments.front() == "-h")) {
    std::fputs(launch_help().c_str(), stdout);
    return 0;
  }
  AgentRequest request;
  request.environment = read_environment();
  Result<LaunchLine> parsed = parse_launch_line(arguments, request.environment);
  if (!parsed.ok()) return fail(parsed.error());
  LaunchLine& line = *parsed;
  if (const Status chosen = choose_nproc(line, request.environment); !chosen.ok()) {
    return fail(chosen.error(), ExitCode::kDeviceFault);
  }
  if (const Status known = complete_command(line, request.environment); !known.ok()) return fail(known.error());
  for (const std::string& remark : line.remarks) request.remark += "note: " + remark + "\n";
  if (!line.ignored.empty()) {
    request.remark += "note: " + joined(line.ignored, ", ") + ": torchrun's, without effect here\n";
  }
  if (!request.remark.empty()) request.remark.pop_back();
  request.arguments = line.flags;
  request.config = std::move(line.config);
  // For messages, /status and the page: the script's name.
  const std::optional<PythonCommand> python = python_command(line.command.words);
  const std::string shown =
      python ? python->program[python->program.front() == "-m" ? 1 : 0] : line.command.words.front();
  request.config.workload = base_name(shown);
  request.program = std::move(line.command);
  return start_agent_of(fs, std::move(request));
}

}  // namespace lockstep
