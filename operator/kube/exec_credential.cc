#include "operator/kube/exec_credential.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <system_error>

#include "operator/kube/token_source.h"
#include "runner/base/file_system.h"

namespace lockstep::kube {
namespace {

constexpr std::string_view kV1 = "client.authentication.k8s.io/v1";
constexpr std::string_view kV1Beta1 = "client.authentication.k8s.io/v1beta1";
constexpr const char* kExecInfo = "KUBERNETES_EXEC_INFO";
constexpr size_t kAnswerBytesMax = size_t{1} << 20;

Result<std::vector<std::string>> arguments_of(const Json& exec, const std::string& where) {
  std::vector<std::string> arguments;
  const auto it = exec.find("args");
  if (it == exec.end() || it->is_null()) return arguments;
  const bool is_list_of_strings =
      it->is_array() && std::all_of(it->begin(), it->end(), [](const Json& one) { return one.is_string(); });
  if (!is_list_of_strings) return invalid(where + ".args", "expected a list of strings");
  for (const Json& one : *it) arguments.push_back(one.get<std::string>());
  return arguments;
}

Result<std::map<std::string, std::string>> environment_of(const Json& exec, const std::string& where) {
  std::map<std::string, std::string> environment;
  const auto it = exec.find("env");
  if (it == exec.end() || it->is_null()) return environment;
  const Error expected = invalid(where + ".env", "expected a list of {name, value}");
  if (!it->is_array()) return expected;
  for (const Json& one : *it) {
    if (!one.is_object()) return expected;
    TRY_ASSIGN(const std::string name, checked_text(one, "name", where + ".env"));
    TRY_ASSIGN(const std::string value, checked_text(one, "value", where + ".env"));
    if (name.empty() || name.find('=') != std::string::npos) return expected;
    environment[name] = value;
  }
  return environment;
}

// An empty map where provideClusterInfo is true, else null.
Result<Json> cluster_of(const Json& exec, const std::string& where) {
  TRY_ASSIGN(const bool is_wanted, checked_flag(exec, "provideClusterInfo", where));
  return is_wanted ? Json::object() : Json();
}

Result<ExecPlugin::Terminal> terminal_of(const Json& exec, const std::string& api_version, const std::string& where) {
  TRY_ASSIGN(const std::string mode, checked_text(exec, "interactiveMode", where));
  if (mode == "Never") return ExecPlugin::Terminal::kNever;
  if (mode == "Always") return ExecPlugin::Terminal::kAlways;
  // v1 asks for the field, v1beta1 has this default.
  if (mode == "IfAvailable" || (mode.empty() && api_version == kV1Beta1)) return ExecPlugin::Terminal::kIfAvailable;
  return invalid(where + ".interactiveMode",
                 (mode.empty() ? "is missing" : "is \"" + mode + "\"") + "; expected Never, IfAvailable or Always");
}

std::string hint(const ExecPlugin& plugin) {
  return plugin.install_hint.empty() ? std::string() : "\n" + plugin.install_hint;
}

// KEY=VALUE each, the plugin's own over ours.
std::vector<std::string> environment_for(const ExecPlugin& plugin, std::map<std::string, std::string> environment,
                                         bool has_terminal) {
  for (const auto& [name, value] : plugin.environment) environment[name] = value;
  environment[kExecInfo] = exec_info(plugin, has_terminal);
  std::vector<std::string> entries;
  entries.reserve(environment.size());
  for (const auto& [name, value] : environment) entries.push_back(name + "=" + value);
  return entries;
}

// The null-terminated array that execve and posix_spawn take; the pointers are into `texts`.
std::vector<char*> pointers_to(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  pointers.reserve(texts.size() + 1);
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

// Starts the program with `out` as its stdout. An errno, or 0.
int start(const ExecPlugin& plugin, std::vector<std::string> environment, bool has_terminal, int out, pid_t& pid) {
  std::vector<std::string> words{plugin.command};
  words.insert(words.end(), plugin.arguments.begin(), plugin.arguments.end());
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  if (!has_terminal) ::posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  ::posix_spawn_file_actions_adddup2(&actions, out, STDOUT_FILENO);
  // This process ignores SIGPIPE; the program gets the default, so that it ends when nobody reads its output any more.
  posix_spawnattr_t attributes;
  ::posix_spawnattr_init(&attributes);
  sigset_t to_default;
  ::sigemptyset(&to_default);
  ::sigaddset(&to_default, SIGPIPE);
  ::posix_spawnattr_setsigdefault(&attributes, &to_default);
  ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGDEF);
  const int error = ::posix_spawnp(&pid, plugin.command.c_str(), &actions, &attributes, pointers_to(words).data(),
                                   pointers_to(environment).data());
  ::posix_spawnattr_destroy(&attributes);
  ::posix_spawn_file_actions_destroy(&actions);
  return error;
}

// Reads to the end, but at most one byte more than the limit, by which the caller sees that it was exceeded.
std::string read_answer(int fd) {
  std::string text;
  std::array<char, 4096> buffer{};
  while (text.size() <= kAnswerBytesMax) {
    const ssize_t got = ::read(fd, buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    text.append(buffer.data(), static_cast<size_t>(got));
  }
  return text;
}

std::string how_it_ended(int status) {
  if (WIFSIGNALED(status)) return std::string("was ended by ") + strsignal(WTERMSIG(status));
  return "ended with exit code " + std::to_string(WEXITSTATUS(status));
}

}  // namespace

Result<std::string> checked_text(const Json& map, const char* name, const std::string& where) {
  const auto it = map.find(name);
  if (it == map.end() || it->is_null()) return std::string();
  if (!it->is_string()) {
    return invalid(where + "." + name, std::string("is ") + it->type_name() + ", expected a string");
  }
  return it->get<std::string>();
}

Result<bool> checked_flag(const Json& map, const char* name, const std::string& where) {
  const auto it = map.find(name);
  if (it == map.end() || it->is_null()) return false;
  if (!it->is_boolean()) {
    return invalid(where + "." + name, std::string("is ") + it->type_name() + ", expected true or false");
  }
  return it->get<bool>();
}

Result<ExecPlugin> parse_exec_plugin(const Json& exec, const std::string& where, const std::string& folder) {
  if (!exec.is_object()) return invalid(where, std::string("is ") + exec.type_name() + ", expected a map");
  ExecPlugin plugin;
  plugin.where = where;
  TRY_ASSIGN(plugin.api_version, checked_text(exec, "apiVersion", where));
  if (plugin.api_version != kV1 && plugin.api_version != kV1Beta1) {
    return invalid(where + ".apiVersion", "is \"" + plugin.api_version + "\", expected " + std::string(kV1) + " or " +
                                              std::string(kV1Beta1) + "; bring the program that made it up to date");
  }
  TRY_ASSIGN(plugin.command, checked_text(exec, "command", where));
  if (plugin.command.empty()) return invalid(where + ".command", "is missing; expected the program to run");
  if (plugin.command.find('/') != std::string::npos && !plugin.command.starts_with('/')) {
    plugin.command = join_path(folder, plugin.command);
  }
  TRY_ASSIGN(plugin.arguments, arguments_of(exec, where));
  TRY_ASSIGN(plugin.environment, environment_of(exec, where));
  TRY_ASSIGN(plugin.install_hint, checked_text(exec, "installHint", where));
  TRY_ASSIGN(plugin.terminal, terminal_of(exec, plugin.api_version, where));
  TRY_ASSIGN(plugin.cluster, cluster_of(exec, where));
  return plugin;
}

std::string exec_info(const ExecPlugin& plugin, bool has_terminal) {
  Json spec{{"interactive", has_terminal}};
  if (!plugin.cluster.is_null()) spec["cluster"] = plugin.cluster;
  const Json info{{"apiVersion", plugin.api_version}, {"kind", "ExecCredential"}, {"spec", std::move(spec)}};
  return dump_line(info);
}

Result<ExecCredential> parse_exec_credential(std::string_view text, const ExecPlugin& plugin) {
  const std::string where = plugin.where + ": the answer of " + plugin.command;
  if (text.size() > kAnswerBytesMax) return invalid(where, "is larger than 1 MiB; expected an ExecCredential");
  const Result<Json> parsed = parse_json(text, "the answer");
  if (!parsed.ok() || !parsed->is_object()) return invalid(where, "is not JSON; expected an ExecCredential");
  const Json& answer = *parsed;
  if (answer.value("kind", Json()) != "ExecCredential") return invalid(where, "is not of kind ExecCredential");
  if (answer.value("apiVersion", Json()) != plugin.api_version) {
    return invalid(where, "is not of apiVersion " + plugin.api_version + ", which the kubeconfig asks for");
  }
  const auto status = answer.find("status");
  if (status == answer.end() || !status->is_object()) return invalid(where, "has no status");
  ExecCredential credential;
  TRY_ASSIGN(credential.token, checked_text(*status, "token", where + ": status"));
  TRY_ASSIGN(credential.client_certificate, checked_text(*status, "clientCertificateData", where + ": status"));
  TRY_ASSIGN(credential.client_key, checked_text(*status, "clientKeyData", where + ": status"));
  if (!is_one_word(credential.token)) {
    return invalid(where + ": status.token", "is not one word of printable ASCII characters");
  }
  if (credential.client_certificate.empty() != credential.client_key.empty()) {
    return invalid(where + ": status", "has one of clientCertificateData and clientKeyData; expected both");
  }
  if (credential.token.empty() && credential.client_certificate.empty()) {
    return invalid(where + ": status", "has neither token nor clientCertificateData");
  }
  return credential;
}

Result<ExecCredential> run_exec_plugin(const ExecPlugin& plugin,
                                       const std::map<std::string, std::string>& environment) {
  const bool is_terminal = ::isatty(STDIN_FILENO) == 1;
  if (plugin.terminal == ExecPlugin::Terminal::kAlways && !is_terminal) {
    return invalid(plugin.where + ".interactiveMode", "is Always, and stdin is not a terminal; run it in one");
  }
  const bool has_terminal = is_terminal && plugin.terminal != ExecPlugin::Terminal::kNever;
  std::array<int, 2> pipe{};
  if (::pipe2(pipe.data(), O_CLOEXEC) != 0) {
    return Error{ErrorCode::kUnavailable, plugin.where + ": pipe: " + std::generic_category().message(errno)};
  }
  pid_t pid = 0;
  const int error = start(plugin, environment_for(plugin, environment, has_terminal), has_terminal, pipe[1], pid);
  ::close(pipe[1]);
  const std::string answer = error == 0 ? read_answer(pipe[0]) : std::string();
  ::close(pipe[0]);
  if (error != 0) {
    return Error{ErrorCode::kNotFound, plugin.where + ": cannot run " + plugin.command + ": " +
                                           std::generic_category().message(error) + "; install it, or put it on PATH" +
                                           hint(plugin)};
  }
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  if (status != 0 && answer.size() <= kAnswerBytesMax) {
    return invalid(plugin.where, plugin.command + " " + how_it_ended(status) +
                                     "; its own messages are above: fix the cause, or log in again" + hint(plugin));
  }
  return parse_exec_credential(answer, plugin);
}

}  // namespace lockstep::kube
