// ExecCredential: credentials from a program that a kubeconfig names, as those of EKS, GKE and AKS do.
//
// Follows client.authentication.k8s.io/v1 and v1beta1: the program reads KUBERNETES_EXEC_INFO and prints an
// ExecCredential; what it prints on stderr, and asks on the terminal, is for the person who waits.
// Threads: pure but for run_exec_plugin. Errors: kInvalid and kNotFound name the kubeconfig's field, what was found
// and what to do; nothing that the program printed on stdout is in them, for it may be a secret.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "runner/base/json.h"
#include "runner/base/result.h"

namespace lockstep::kube {

// A field of a map; "" and false when it is absent or null. kInvalid names WHERE.NAME when it has another type.
Result<std::string> checked_text(const Json& map, const char* name, const std::string& where);
Result<bool> checked_flag(const Json& map, const char* name, const std::string& where);

// users[].user.exec
struct ExecPlugin {
  enum class Terminal { kNever, kIfAvailable, kAlways };  // interactiveMode

  std::string where;  // "/x/config: users[me].exec", for messages
  std::string api_version;
  std::string command;  // a path, or a name that PATH leads to
  std::vector<std::string> arguments;
  std::map<std::string, std::string> environment;  // besides our own
  std::string install_hint;
  Terminal terminal = Terminal::kIfAvailable;
  // spec.cluster of KUBERNETES_EXEC_INFO; the caller of parse_exec_plugin fills it in. Null unless provideClusterInfo.
  Json cluster;

  bool operator==(const ExecPlugin&) const = default;
};

struct ExecCredential {
  std::string token;               // "" when there is none
  std::string client_certificate;  // PEM, with its chain; "" when there is none
  std::string client_key;
};

// `folder`: a command with '/' in it is relative to it.
Result<ExecPlugin> parse_exec_plugin(const Json& exec, const std::string& where, const std::string& folder);

// The value of KUBERNETES_EXEC_INFO.
std::string exec_info(const ExecPlugin& plugin, bool has_terminal);

// What the program printed.
Result<ExecCredential> parse_exec_credential(std::string_view text, const ExecPlugin& plugin);

// Runs the program and waits for its end, without a time limit: a person may have to log in. `environment`: this
// process's own.
Result<ExecCredential> run_exec_plugin(const ExecPlugin& plugin, const std::map<std::string, std::string>& environment);

}  // namespace lockstep::kube
