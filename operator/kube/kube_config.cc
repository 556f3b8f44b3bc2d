#include "operator/kube/kube_config.h"

#include <openssl/evp.h>

#include <algorithm>
#include <map>
#include <type_traits>

#include "operator/api/yaml.h"
#include "operator/kube/server_url.h"
#include "operator/kube/small_file.h"
#include "operator/kube/token_source.h"
#include "runner/base/file_system.h"
#include "runner/base/nearest.h"
#include "runner/base/plural.h"

namespace lockstep::kube {
namespace {

bool is_empty_text(const Json& value) { return value.is_string() && value.get_ref<const std::string&>().empty(); }

// A text or a flag of a map; "" and false when it is absent or null.
template <typename T>
Result<T> checked(const Json& map, const char* name, const std::string& where) {
  constexpr bool kIsFlag = std::is_same_v<T, bool>;
  const auto it = map.find(name);
  if (it == map.end() || it->is_null()) return T();
  if (kIsFlag ? it->is_boolean() : it->is_string()) return it->get<T>();
  return invalid(where + "." + name,
                 std::string("is ") + it->type_name() + ", expected " + (kIsFlag ? "true or false" : "a string"));
}

// One named entry of a list: clusters[].cluster, users[].user, contexts[].context.
struct Entry {
  const KubeConfigFile* file = nullptr;
  const char* list = nullptr;  // "clusters"
  std::string name;
  const Json* body = nullptr;  // a map

  // "/x/config: users[me]"
  [[nodiscard]] std::string where() const {
    std::string text = file->path;
    return text.append(": ").append(list).append("[").append(name).append("]");
  }
  [[nodiscard]] Result<std::string> text(const char* field) const {
    return checked<std::string>(*body, field, where());
  }
  [[nodiscard]] Result<bool> flag(const char* field) const { return checked<bool>(*body, field, where()); }
};

// "clusters" → "cluster"
std::string singular(const char* list) {
  std::string name = list;
  name.pop_back();
  return name;
}

// The entries of one list over all files; the first of a name wins.
Result<std::map<std::string, Entry>> entries_of(const std::vector<KubeConfigFile>& files, const char* list) {
  std::map<std::string, Entry> entries;
  static const Json empty_map = Json::object();
  for (const KubeConfigFile& file : files) {
    const auto found = file.content.find(list);
    if (found == file.content.end() || found->is_null()) continue;
    const std::string where = file.path + ": " + list;
    if (!found->is_array()) return invalid(where, std::string("is ") + found->type_name() + ", expected a list");
    for (const Json& item : *found) {
      if (!item.is_object()) return invalid(where, "holds an entry that is not a map");
      const auto name = item.find("name");
      if (name == item.end() || !name->is_string()) return invalid(where, "holds an entry without a name");
      Entry entry{&file, list, name->get<std::string>(), &empty_map};
      if (const auto body = item.find(singular(list)); body != item.end() && !body->is_null()) {
        if (!body->is_object()) return invalid(entry.where() + "." + singular(list), "is not a map");
        entry.body = &*body;
      }
      entries.emplace(entry.name, entry);
    }
  }
  return entries;
}

Result<Entry> entry_named(const std::map<std::string, Entry>& entries, const char* list, const std::string& name,
                          const std::string& asked_by) {
  if (const auto found = entries.find(name); found != entries.end()) return found->second;
  std::string message = asked_by;
  message.append(" names the ").append(singular(list)).append(" \"").append(name).append("\", which is not in ");
  message.append(list);
  std::vector<std::string> known;
  for (const auto& [key, entry] : entries) known.push_back(key);
  const std::string nearest = nearest_name(name, known);
  if (!nearest.empty()) {
    message.append("; did you mean \"").append(nearest).append("\"?");
  } else if (known.empty()) {
    message.append(" (there is none)");
  } else {
    message.append("; there is ");
    for (size_t i = 0; i < known.size(); ++i) message.append(i == 0 ? "\"" : ", \"").append(known[i]).append("\"");
  }
  return invalid(message);
}

std::string absolute_path(const Entry& entry, const std::string& path) {
  return path.starts_with('/') ? path : join_path(parent_path(entry.file->path), path);
}

// NAME-data (base64, inline) or NAME (a file).
Result<PemSource> pem_field(const Entry& entry, const std::string& name) {
  const std::string data_name = name + "-data";
  TRY_ASSIGN(std::string data, entry.text(data_name.c_str()));
  PemSource source;
  if (!data.empty()) {
    Result<std::string> text = base64_decoded(data);
    if (!text.ok()) return text.error().with_context(entry.where() + "." + data_name);
    source.text = *std::move(text);
    return source;
  }
  TRY_ASSIGN(std::string file, entry.text(name.c_str()));
  if (!file.empty()) source.file = absolute_path(entry, file);
  return source;
}

Status read_cluster(const Entry& cluster, ServerAccess& access) {
  TRY_ASSIGN(access.url, cluster.text("server"));
  if (access.url.empty()) return invalid(cluster.where() + ".server", "is missing; expected https://HOST:PORT");
  const Result<ServerUrl> url = parse_server_url(access.url);
  if (!url.ok()) return url.error().with_context(cluster.where() + ".server");
  TRY_ASSIGN(access.tls.authority, pem_field(cluster, "certificate-authority"));
  TRY_ASSIGN(access.tls.server_name, cluster.text("tls-server-name"));
  TRY_ASSIGN(access.tls.skip_verify, cluster.flag("insecure-skip-tls-verify"));
  TRY_ASSIGN(std::string proxy, cluster.text("proxy-url"));
  if (!proxy.empty()) {
    return invalid(cluster.where() + ".proxy-url",
                   "proxies are not supported; give an address that is reached directly and remove this field");
  }
  if (access.tls.skip_verify && !access.tls.authority.empty()) {
    return invalid(cluster.where() + ".insecure-skip-tls-verify",
                   "is true while certificate-authority is given; expected one of the two");
  }
  if (access.tls.skip_verify) {
    access.warnings.push_back(cluster.where() +
                              ".insecure-skip-tls-verify: the server's certificate is not checked; whoever answers "
                              "at its address gets the credentials");
  }
  if (!url->https) {
    access.warnings.push_back(cluster.where() + ".server: http sends requests and credentials in the clear");
  }
  return {};
}

// Refuses kinds of credentials that are not supported; each error says what to use instead.
Status refuse_unsupported(const Entry& user) {
  const auto has = [&](const char* name) {
    const auto it = user.body->find(name);
    return it != user.body->end() && !it->is_null() && !is_empty_text(*it) && !(it->is_structured() && it->empty());
  };
  const auto refuse = [&](const char* name, const std::string& why) {
    return invalid(user.where() + "." + name, why + "; " + std::string(kUsableCredentials));
  };
  const bool has_credentials =
      has("token") || has("tokenFile") || has("client-certificate") || has("client-certificate-data");
  if (has("exec") && !has_credentials) {
    return refuse("exec", "programs that log in are not run, because the credentials that they give expire");
  }
  if (has("auth-provider")) return refuse("auth-provider", "is not supported (kubectl 1.26 dropped it too)");
  if (has("username") || has("password"))
    return refuse("username", "API servers have no basic authentication any more");
  for (const char* name : {"as", "as-uid", "as-groups", "as-user-extra"}) {
    if (has(name)) return refuse(name, "acting as somebody else is not supported");
  }
  return {};
}

Status read_user(const Entry& user, ServerAccess& access) {
  TRY(refuse_unsupported(user));
  TRY_ASSIGN(access.token, user.text("token"));
  TRY_ASSIGN(std::string token_file, user.text("tokenFile"));
  if (!token_file.empty()) access.token_file = absolute_path(user, token_file);
  if (!is_one_word(access.token)) {
    return invalid(user.where() + ".token", "is not one word of printable ASCII characters");
  }
  TRY_ASSIGN(access.tls.client_certificate, pem_field(user, "client-certificate"));
  TRY_ASSIGN(access.tls.client_key, pem_field(user, "client-key"));
  if (access.tls.client_certificate.empty() != access.tls.client_key.empty()) {
    return invalid(user.where(), access.tls.client_key.empty() ? "has client-certificate without client-key"
                                                               : "has client-key without client-certificate");
  }
  return {};
}

std::string paths_of(const std::vector<KubeConfigFile>& files) { return joined(files, ", ", &KubeConfigFile::path); }

Result<std::string> current_context(const std::vector<KubeConfigFile>& files) {
  for (const KubeConfigFile& file : files) {
    const auto found = file.content.find("current-context");
    if (found == file.content.end() || found->is_null() || is_empty_text(*found)) continue;
    if (!found->is_string()) {
      return invalid(file.path + ": current-context", std::string("is ") + found->type_name() + ", expected a string");
    }
    return found->get<std::string>();
  }
  return invalid(paths_of(files),
                 "has no current-context; set one (kubectl config use-context NAME) or name a context");
}

}  // namespace

Result<std::string> base64_decoded(std::string_view text) {
  static constexpr std::string_view kAlphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string digits(text);
  std::erase_if(digits, [](char c) { return c == '\n' || c == '\r' || c == ' '; });
  const size_t count = digits.find_last_not_of('=') + 1;
  const size_t padding = digits.size() - count;
  const bool has_others = digits.find_first_not_of(kAlphabet) < count;
  if (digits.size() % 4 != 0 || padding > 2 || has_others) return invalid("is not base64");
  std::vector<unsigned char> bytes(digits.size() / 4 * 3);
  const auto* const read = reinterpret_cast<const unsigned char*>(digits.data());
  EVP_DecodeBlock(bytes.data(), read, static_cast<int>(digits.size()));
  return std::string(bytes.begin(), bytes.end() - static_cast<std::ptrdiff_t>(padding));
}

Result<KubeConfigFile> parse_kube_config(std::string_view text, const std::string& path) {
  TRY_ASSIGN(std::vector<OrderedJson> documents, api::parse_yaml_documents(text, path));
  if (documents.empty()) return KubeConfigFile{path, Json::object()};  // an empty file says nothing, as for kubectl
  if (documents.size() > 1) return invalid(path, "holds several YAML documents, expected one");
  if (!documents.front().is_object())
    return invalid(path, "is not a kubeconfig; expected a map with clusters and users");
  KubeConfigFile file{path, Json(documents.front())};
  const auto kind = file.content.find("kind");
  if (kind != file.content.end() && *kind != "Config") {
    return invalid(path + ": kind", "is " + dump_line(*kind) + ", expected Config");
  }
  return file;
}

Result<ServerAccess> select_access(const std::vector<KubeConfigFile>& files, const std::string& context) {
  using Entries = std::map<std::string, Entry>;
  TRY_ASSIGN(const Entries contexts, entries_of(files, "contexts"));
  TRY_ASSIGN(const Entries clusters, entries_of(files, "clusters"));
  TRY_ASSIGN(const Entries users, entries_of(files, "users"));
  std::string name = context;
  std::string asked_by = paths_of(files) + ": the request";
  if (name.empty()) {
    TRY_ASSIGN(name, current_context(files));
    asked_by = paths_of(files) + ": current-context";
  }
  TRY_ASSIGN(const Entry chosen, entry_named(contexts, "contexts", name, asked_by));
  TRY_ASSIGN(const std::string cluster_name, chosen.text("cluster"));
  TRY_ASSIGN(const std::string user_name, chosen.text("user"));
  if (cluster_name.empty()) return invalid(chosen.where() + ".cluster", "is missing");
  ServerAccess access;
  TRY_ASSIGN(access.ns, chosen.text("namespace"));
  access.source = "kubeconfig " + chosen.file->path + ", context " + name;
  TRY_ASSIGN(const Entry cluster, entry_named(clusters, "clusters", cluster_name, chosen.where()));
  TRY(read_cluster(cluster, access));
  if (!user_name.empty()) {
    TRY_ASSIGN(const Entry user, entry_named(users, "users", user_name, chosen.where()));
    TRY(read_user(user, access));
  }
  return access;
}

Result<ServerAccess> load_kube_config(const std::string& paths, const std::string& context) {
  std::vector<std::string> names;
  for (size_t begin = 0; begin <= paths.size();) {
    const size_t end = std::min(paths.find(':', begin), paths.size());
    if (end > begin) names.push_back(paths.substr(begin, end - begin));
    begin = end + 1;
  }
  std::vector<KubeConfigFile> files;
  for (const std::string& name : names) {
    Result<std::string> text = read_small_file(name);
    if (!text.ok()) {
      if (text.error().code == ErrorCode::kNotFound && names.size() > 1) continue;
      return text.error().with_context("kubeconfig");
    }
    TRY_ASSIGN(KubeConfigFile file, parse_kube_config(*text, name));
    files.push_back(std::move(file));
  }
  if (files.empty()) {
    return Error{ErrorCode::kNotFound, "kubeconfig: none of these files exists: " + (paths.empty() ? "(none)" : paths)};
  }
  return select_access(files, context);
}

Result<ServerAccess> in_cluster_access(const std::string& host, const std::string& port, const std::string& folder) {
  if (host.empty() || port.empty()) {
    return Error{ErrorCode::kNotFound,
                 "KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set: this is no pod of a cluster; give a "
                 "kubeconfig"};
  }
  ServerAccess access;
  access.source = "the service account of this pod";
  access.url = host.find(':') != std::string::npos ? "https://[" + host + "]:" + port : "https://" + host + ":" + port;
  const Result<ServerUrl> url = parse_server_url(access.url);
  if (!url.ok()) return url.error().with_context("KUBERNETES_SERVICE_HOST, KUBERNETES_SERVICE_PORT");
  access.tls.authority.file = join_path(folder, "ca.crt");
  access.token_file = join_path(folder, "token");
  for (const std::string& file : {access.tls.authority.file, access.token_file}) {
    const Result<std::string> text = read_small_file(file);
    if (!text.ok()) {
      return Error{text.error().code, text.error().message +
                                          "; the pod needs its service account's token (automountServiceAccountToken: "
                                          "true)"};
    }
  }
  // Missing in a pod that mounts its token by hand; a caller that needs the namespace reports that.
  const Result<std::string> ns = read_small_file(join_path(folder, "namespace"));
  if (ns.ok()) {
    access.ns = *ns;
    while (!access.ns.empty() && (access.ns.back() == '\n' || access.ns.back() == ' ')) access.ns.pop_back();
  }
  return access;
}

}  // namespace lockstep::kube
