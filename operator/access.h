// How a program reaches its API server, and the key from which the pods' tokens are made.
//
// The environment is an argument; files are read. Errors name what was looked for and what to do.
#pragma once

#include <string>

#include "operator/kube/client.h"
#include "operator/kube/kube_config.h"
#include "runner/base/environment.h"
#include "runner/base/result.h"

namespace lockstep {

// `kubeconfig`, else KUBECONFIG, else the pod's service account, else ~/.kube/config. `context`: "" for the current
// one.
Result<kube::ServerAccess> find_access(const std::string& kubeconfig, const std::string& context,
                                       const Environment& environment);

// Options of a client that sends the token of `access` and calls itself `program`, with this build's version.
kube::ClientOptions client_options(const kube::ServerAccess& access, const std::string& program);

inline constexpr size_t kTokenKeyBytesMin = 16;

// The bytes of the file. The message of kNotFound has the command that makes the Secret.
Result<std::string> read_token_key(const std::string& path, const std::string& operator_namespace);

}  // namespace lockstep
