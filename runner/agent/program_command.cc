#include "runner/agent/program_command.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <filesystem>
#include <sstream>

#include "runner/contract/env_names.h"
#include "runner/contract/generation.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

constexpr size_t kLastLinesMax = 64;
constexpr size_t kLastLineBytesMax = 1024;
constexpr const char* kRoleName = "default";

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
std::string place_of(const std::string& line) {
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

}  // namespace

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

Environment program_environment(Environment of_agent, const Account& account, const std::string& temporary) {
  Environment variables;
  for (auto& [name, value] : of_agent) {
    const bool is_kept = name.starts_with(env::kKeptPrefix);
    variables.insert_or_assign(is_kept ? name.substr(env::kKeptPrefix.size()) : name, std::move(value));
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
  set("ROLE_NAME", kRoleName);
  set(env::kLocalRank, std::to_string(assignment.local_rank));
  set(env::kLocalWorldSize, std::to_string(assignment.local_world_size));
  set(env::kGroupRank, std::to_string((assignment.rank - assignment.local_rank) / assignment.local_world_size));
  set(env::kGroupWorldSize, std::to_string(assignment.nnodes));
  set(env::kMasterAddr, master.host);
  set(env::kMasterPort, std::to_string(master.port));
  set(env::kTorchRestartCount, std::to_string(std::max<uint32_t>(1, counter_of(assignment.generation)) - 1));
  set("TORCHELASTIC_MAX_RESTARTS", std::to_string(command.max_restarts));
  set("TORCHELASTIC_RUN_ID", command.run_id);
  set("TORCHELASTIC_SIGNALS_TO_HANDLE", "SIGTERM,SIGINT,SIGHUP,SIGQUIT");
  set(env::kTorchUseAgentStore, "False");
  variables.try_emplace("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1");
  if (assignment.local_world_size > 1) variables.try_emplace("OMP_NUM_THREADS", "1");
  return variables;
}

void LastLines::add(const std::string& line) {
  lines_.push_back(line.substr(0, kLastLineBytesMax));
  if (lines_.size() > kLastLinesMax) lines_.pop_front();
}

std::string LastLines::reason() const {
  std::string place;
  std::string error;
  bool in_traceback = false;
  for (const std::string& line : lines_) {
    const std::string text = without_rank(line);
    if (text.starts_with("Traceback (most recent call last)")) {
      in_traceback = true;
      place.clear();
      error.clear();
      continue;
    }
    if (!in_traceback) continue;
    if (const std::string found = place_of(text); !found.empty()) {
      place = found;
    } else if (!text.empty() && text.front() != ' ') {
      error = text;
      in_traceback = false;
    }
  }
  if (!error.empty()) return place.empty() ? error : error + " (" + place + ")";
  const auto said = std::find_if(lines_.rbegin(), lines_.rend(), [](const std::string& line) {
    return line.find_first_not_of(" \t\r") != std::string::npos;
  });
  return said == lines_.rend() ? "" : *said;
}

}  // namespace lockstep
