// KubeConfig: how to reach an API server, from kubeconfig files or from inside a pod.
//
// kubeconfig is read as client-go reads it: of several files the first that has an entry wins, inline data win over a
// file, paths are relative to the file that holds them. Programs that log in (exec, unless other credentials are
// there), auth-provider, basic authentication, impersonation and proxies are refused by name. Threads: pure but for
// load_kube_config and in_cluster_access, which read files. Errors: kInvalid names file and field, and says what to do;
// kNotFound when there is no file.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "operator/kube/tls_options.h"
#include "runner/base/json.h"
#include "runner/base/result.h"

namespace lockstep::kube {

inline constexpr std::string_view kServiceAccountFolder = "/var/run/secrets/kubernetes.io/serviceaccount";

// All that it takes to speak with one API server as one user.
struct ServerAccess {
  std::string url;
  TlsOptions tls;
  std::string token;                  // sent as it is
  std::string token_file;             // read again and again; wins over `token`
  std::string ns;                     // of the context, or of the pod; "" when nothing is said
  std::string source;                 // for messages: "kubeconfig /x, context y", "the service account of this pod"
  std::vector<std::string> warnings;  // sentences to be logged once
};

// What to do where credentials are of a kind that cannot be used: a part of a sentence.
inline constexpr std::string_view kUsableCredentials =
    "use a service account's token (token or tokenFile) or a client certificate (client-certificate, client-key)";

// One kubeconfig file, parsed but not yet understood.
struct KubeConfigFile {
  std::string path;  // names the file in messages; relative paths in it start from its folder
  Json content;
};
Result<KubeConfigFile> parse_kube_config(std::string_view text, const std::string& path);

// `context`: a name, or "" for current-context.
Result<ServerAccess> select_access(const std::vector<KubeConfigFile>& files, const std::string& context);

// `paths`: one file, or several with ':' between them, as in KUBECONFIG. Of several, those that do not exist are
// passed over.
Result<ServerAccess> load_kube_config(const std::string& paths, const std::string& context);

// From within a pod. `host`, `port`: the values of KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT.
Result<ServerAccess> in_cluster_access(const std::string& host, const std::string& port,
                                       const std::string& folder = std::string(kServiceAccountFolder));

// RFC 4648 with padding; line breaks are passed over. kInvalid for anything else.
Result<std::string> base64_decoded(std::string_view text);

}  // namespace lockstep::kube
