#include "operator/access.h"

#include <fstream>
#include <iterator>
#include <memory>

#include "operator/kube/token_source.h"
#include "runner/base/build_info.h"

namespace lockstep {
namespace {

// The Kubernetes client's own variables; nothing of the contract between operator, pod and worker.
constexpr const char* kHost = "KUBERNETES_SERVICE_HOST";
constexpr const char* kPort = "KUBERNETES_SERVICE_PORT";
constexpr const char* kConfig = "KUBECONFIG";
constexpr const char* kHome = "HOME";

std::string how_to_make_the_key(const std::string& operator_namespace) {
  std::string text = "make it with:\n  head -c 32 /dev/urandom | kubectl create secret generic lockstep-token-key -n ";
  return text.append(operator_namespace).append(" --from-file=key=/dev/stdin");
}

}  // namespace

Result<kube::ServerAccess> find_access(const std::string& kubeconfig, const std::string& context,
                                       const Environment& environment) {
  if (!kubeconfig.empty()) return kube::load_kube_config(kubeconfig, context);
  if (const std::string paths = variable(environment, kConfig); !paths.empty()) {
    return kube::load_kube_config(paths, context);
  }
  const std::string host = variable(environment, kHost);
  if (!host.empty() && context.empty()) return kube::in_cluster_access(host, variable(environment, kPort));
  const std::string home = variable(environment, kHome);
  Result<kube::ServerAccess> found = kube::load_kube_config(home + "/.kube/config", context);
  if (found.ok() || found.error().code != ErrorCode::kNotFound) return found;
  return Error{
      ErrorCode::kNotFound,
      "no API server is configured: name a file with --kubeconfig or KUBECONFIG, put one at ~/.kube/config, or run "
      "in a pod with a service account"};
}

kube::ClientOptions client_options(const kube::ServerAccess& access, const std::string& program) {
  kube::ClientOptions options;
  options.user_agent = program + "/" + build_version();
  if (!access.token.empty() || !access.token_file.empty()) {
    const auto tokens = std::make_shared<kube::TokenSource>(
        kube::TokenSource::Options{.token = access.token, .file = access.token_file});
    options.bearer_token = [tokens] { return tokens->token(); };
    options.token_refused = [tokens] { tokens->refuse(); };
  }
  return options;
}

Result<std::string> read_token_key(const std::string& path, const std::string& operator_namespace) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    return Error{ErrorCode::kNotFound, "cannot read " + path + ", the key of the pods' tokens, from the Secret " +
                                           "lockstep-token-key; " + how_to_make_the_key(operator_namespace)};
  }
  std::string key{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  if (key.size() < kTokenKeyBytesMin) {
    return invalid(path + " holds " + std::to_string(key.size()) + " bytes, expected 32 (at least " +
                   std::to_string(kTokenKeyBytesMin) + "); " + how_to_make_the_key(operator_namespace));
  }
  return key;
}

}  // namespace lockstep
