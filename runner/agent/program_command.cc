#include "runner/agent/program_command.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <csignal>
#include <filesystem>
#include <sstream>

#include "runner/base/json.h"
#include "runner/base/sha256.h"
#include "runner/contract/env_names.h"
#include "runner/contract/generation.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

constexpr size_t kLastLinesMax = 64;
constexpr size_t kLastLineBytesMax = 1024;
constexpr size_t kErrorFileBytesMax = size_t{1} << 20;

// "python", "python3", "python3.11", "pypy3"
bool is_python(const std::string& path) {
  const std::string name = fs::path(path).filename().string();
  if (!name.starts_with("python")) return false;
  return std::all_of(name.begin() + 6, name.end(), [](unsigned char c) { return c == '.' || std::isdigit(c); });
}

bool is_folder_or_zip(const std::string& script) {
  std::error_code error;
  return fs::is_directory(script, error) || script.ends_with(".zip") || script.ends_with(".pyz");
}

// "  File "/a/train.py", line 12, in main" → "train.py:12, in main"; empty for another line.
std::string location_of(const std::string& line) {
  constexpr std::string_view kFile = "File \"";
  constexpr std::string_view kLine = "\", line ";
  const size_t start = line.find(kFile);
  if (start == std::string::npos || line.find_first_not_of(' ') != start) return "";
  const size_t end = line.find(kLine, start);
  if (end == std::string::npos) return "";
  const std::string file = fs::path(line.substr(start + kFile.size(), end - start - kFile.size())).filename().string();
  return file + ":" + line.substr(end + kLine.size());
}

// "[rank0]: ValueError: x", as torch prints it, without its prefix.
std::string without_rank(const std::string& line) {
  const size_t end = line.find("]: ");
  return line.starts_with("[rank") && end != std::string::npos ? line.substr(end + 3) : line;
}

// The GPU of a rank that sees no other: of those that CUDA_VISIBLE_DEVICES names, else by number.
std::string gpu_of(const Environment& environment, int local_rank) {
  std::istringstream visible(variable(environment, env::kCudaVisibleDevices));
  std::string gpu;
  for (int i = 0; i <= local_rank; ++i) {
    if (!std::getline(visible, gpu, ',')) return std::to_string(local_rank);
  }
  return gpu;
}

bool is_syntax_error(const std::string& text) {
  return text.starts_with("SyntaxError: ") || text.starts_with("IndentationError: ") || text.starts_with("TabError: ");
}

}  // namespace

std::vector<int> default_stop_signals() { return {SIGTERM, SIGINT, SIGHUP, SIGQUIT}; }

int restart_count(const Assignment& assignment) {
  return static_cast<int>(std::max<uint32_t>(1, counter_of(assignment.generation)) - 1);
}

std::optional<PythonCommand> python_command(const std::vector<std::string>& words) {
  if (words.empty() || !is_python(words.front())) return std::nullopt;
  PythonCommand command{.python = words.front(), .options = {}, .program = {}};
  size_t at = 1;
  for (; at < words.size() && words[at].starts_with("-") && words[at] != "-m"; ++at) {
    const std::string& option = words[at];
    if (option.size() < 2 || option.starts_with("--") || option.find_first_of("ciVh?") != std::string::npos) {
      return std::nullopt;
    }
    command.options.push_back(option);
    if ((option == "-X" || option == "-W") && at + 1 < words.size()) command.options.push_back(words[++at]);
  }
  command.program.assign(words.begin() + static_cast<std::ptrdiff_t>(at), words.end());
  const bool is_module = !command.program.empty() && command.program.front() == "-m";
  if (command.program.size() < (is_module ? 2U : 1U)) return std::nullopt;
  if (!is_module && is_folder_or_zip(command.program.front())) return std::nullopt;
  return command;
}

std::string program_key(const PythonCommand& command) {
  const bool is_module = command.program.front() == "-m";
  std::error_code error;
  const std::string name =
      is_module ? "-m " + command.program[1] : fs::absolute(command.program.front(), error).lexically_normal().string();
  std::string text = command.python + "\n" + name;
  for (const std::string& option : command.options) text += "\n" + option;
  return sha256_hex(text).substr(0, 16);
}

Result<std::string> find_program(const std::string& name, const Environment& environment) {
  const auto checked = [&name](const fs::path& path) -> Result<std::string> {
    std::error_code error;
    if (fs::is_directory(path, error)) {
      return invalid(name + " is a folder, expected a program: name the script in it, python " + name + "/…");
    }
    if (::access(path.c_str(), X_OK) != 0) {
      return invalid(name + " cannot be executed: run it with its interpreter (python " + name + "), or chmod +x it");
    }
    return path.string();
  };
  std::error_code error;
  if (name.find('/') != std::string::npos) {
    if (fs::exists(name, error)) return checked(name);
    return Error{ErrorCode::kNotFound, "no program " + name + " here (" + fs::current_path(error).string() + ")"};
  }
  const std::string path = variable(environment, "PATH");
  std::istringstream folders(path.empty() ? "/usr/local/bin:/usr/bin:/bin" : path);
  for (std::string folder; std::getline(folders, folder, ':');) {
    const fs::path candidate = fs::path(folder.empty() ? "." : folder) / name;
    if (fs::is_regular_file(candidate, error) && ::access(candidate.c_str(), X_OK) == 0) return candidate.string();
  }
  return Error{ErrorCode::kNotFound, "no program " + name + " on PATH (" + path + ")"};
}

Environment program_environment(const Environment& of_agent, const Account& account, const std::string& temporary) {
  Environment variables;
  for (const auto& [name, value] : of_agent) {
    const bool is_kept = name.starts_with(env::kKeptPrefix);
    variables.insert_or_assign(is_kept ? name.substr(env::kKeptPrefix.size()) : name, value);
  }
  if (account.has_name) return variables;
  if (variable(variables, "USER").empty() && variable(variables, "LOGNAME").empty()) {
    variables["USER"] = "user-" + std::to_string(account.id);
  }
  const std::string home = variable(variables, "HOME");
  if (!temporary.empty() && (home.empty() || home == "/")) variables["HOME"] = temporary;
  return variables;
}

Environment rank_environment(const ProgramCommand& command, const Assignment& assignment, const MasterAddress& master) {
  Environment variables = command.environment;
  const auto set = [&variables](std::string_view name, const std::string& value) {
    variables[std::string(name)] = value;
  };
  const std::string rank = std::to_string(assignment.rank);
  const std::string world_size = std::to_string(assignment.world_size);
  set(env::kRank, rank);
  set("ROLE_RANK", rank);
  set(env::kWorldSize, world_size);
  set("ROLE_WORLD_SIZE", world_size);
  set("ROLE_NAME", command.role);
  set(env::kLocalRank, std::to_string(command.virtual_local_rank ? 0 : assignment.local_rank));
  if (command.virtual_local_rank) set(env::kCudaVisibleDevices, gpu_of(command.environment, assignment.local_rank));
  set(env::kLocalWorldSize, std::to_string(assignment.local_world_size));
  set(env::kGroupRank, std::to_string((assignment.rank - assignment.local_rank) / assignment.local_world_size));
  set(env::kGroupWorldSize, std::to_string(assignment.nnodes));
  set(env::kMasterAddr, master.host);
  set(env::kMasterPort, std::to_string(master.port));
  set(env::kTorchRestartCount, std::to_string(restart_count(assignment)));
  set("TORCHELASTIC_MAX_RESTARTS", std::to_string(command.max_restarts));
  set("TORCHELASTIC_RUN_ID", command.run_id);
  set("TORCHELASTIC_SIGNALS_TO_HANDLE", command.signal_names);
  set(env::kTorchUseAgentStore, "False");
  if (command.recovers) set(env::kRecover, "1");
  variables.try_emplace("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1");
  if (assignment.local_world_size > 1) variables.try_emplace("OMP_NUM_THREADS", "1");
  return variables;
}

std::string reason_of_error_file(FileSystem& fs, const std::string& path) {
  const Result<std::string> text = read_part(fs, path, 0, kErrorFileBytesMax);
  const Result<Json> error = text.ok() ? parse_json(*text, "TORCHELASTIC_ERROR_FILE") : text.error();
  if (!error.ok()) return "";
  LastLines traceback;
  std::istringstream lines(text_field(*error, {"message", "extraInfo", "py_callstack"}));
  for (std::string line; std::getline(lines, line);) traceback.add(line);
  if (const std::string found = traceback.reason(); !found.empty()) return found;
  const std::string nested = text_field(*error, {"message", "message"});
  return nested.empty() ? text_field(*error, {"message"}) : nested;
}

void LastLines::add(const std::string& line) {
  lines_.push_back(line.substr(0, kLastLineBytesMax));
  if (lines_.size() > kLastLinesMax) lines_.pop_front();
}

std::vector<std::string> LastLines::newest(size_t count) const {
  const size_t left_out = lines_.size() - std::min(lines_.size(), count);
  return {lines_.begin() + static_cast<std::ptrdiff_t>(left_out), lines_.end()};
}

std::string LastLines::reason() const {
  std::string location;
  std::string error;
  bool in_traceback = false;
  std::string location_outside;  // of an error in the script itself, which has no traceback
  bool in_crash = false;         // Python's faulthandler: "most recent call first", and all threads
  for (const std::string& line : lines_) {
    const std::string text = without_rank(line);
    if (text.starts_with("Fatal Python error: ")) {
      error = text;
      location.clear();
      in_traceback = false;
    } else if (text.starts_with("Current thread ") && !error.empty()) {
      in_crash = true;
    } else if (in_crash) {
      location = location_of(text);
      in_crash = location.empty();
    } else if (const std::string found = in_traceback ? "" : location_of(text); !found.empty()) {
      location_outside = found;
    } else if (!in_traceback && is_syntax_error(text)) {
      error = text;
      location = location_outside;
    }
    if (text.starts_with("Traceback (most recent call last)")) {
      in_traceback = true;
      location.clear();
      error.clear();
      continue;
    }
    if (!in_traceback) continue;
    if (const std::string found = location_of(text); !found.empty()) {
      location = found;
    } else if (!text.empty() && text.front() != ' ') {
      error = text;
      in_traceback = false;
    }
  }
  if (!error.empty()) return location.empty() ? error : error + " (" + location + ")";
  const auto last = std::find_if(lines_.rbegin(), lines_.rend(), [](const std::string& line) {
    return line.find_first_not_of(" \t\r") != std::string::npos;
  });
  return last == lines_.rend() ? "" : *last;
}

}  // namespace lockstep
