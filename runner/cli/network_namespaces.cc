#include "runner/cli/network_namespaces.h"

#include <fcntl.h>
#include <signal.h>  // NOLINT(modernize-deprecated-headers): kill is POSIX
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <utility>

#include "runner/cli/run_program.h"

namespace lockstep {
namespace {

constexpr const char* kNamespacesFolder = "/run/netns";  // where `ip` keeps namespaces
constexpr std::string_view kPrefix = "lockstep-";
// 198.18.0.0/15 is reserved for benchmarks of network devices (RFC 2544), so no real network uses it.
constexpr const char* kSubnets = "198.18.";
constexpr int kSubnetsMax = 256;
constexpr int kFirstNodeAddress = 10;

std::string bridge_name(const std::string& id) { return "lsb" + id; }
std::string link_name(const std::string& id, int node) { return "lsv" + id + "-" + std::to_string(node); }
std::string namespace_name(const std::string& id, int node) {
  return std::string(kPrefix) + id + "-" + std::to_string(node);
}

Status ip(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "ip");
  return run_program({.command = std::move(arguments)});
}

void remove_node(const std::string& id, int node) {
  static_cast<void>(ip({"link", "del", link_name(id, node)}));
  static_cast<void>(ip({"netns", "del", namespace_name(id, node)}));
}

// "lockstep-4711-2" → 4711 and 2.
bool parse_name(const std::string& name, pid_t& pid, int& node) {
  if (!name.starts_with(kPrefix)) return false;
  const char* const last = name.data() + name.size();
  const auto [dash, error] = std::from_chars(name.data() + kPrefix.size(), last, pid);
  if (error != std::errc() || dash == last || *dash != '-') return false;
  const auto [end, node_error] = std::from_chars(dash + 1, last, node);
  return node_error == std::errc() && end == last;
}

// Removes the networks of processes that were killed before they could do it themselves.
void remove_leftovers() {
  std::error_code error;
  std::vector<std::string> names;
  for (std::filesystem::directory_iterator it(kNamespacesFolder, error), end; !error && it != end;
       it.increment(error)) {
    names.push_back(it->path().filename().string());
  }
  for (const std::string& name : names) {
    pid_t pid = 0;
    int node = 0;
    if (!parse_name(name, pid, node) || ::kill(pid, 0) == 0 || errno != ESRCH) continue;
    remove_node(std::to_string(pid), node);
    static_cast<void>(ip({"link", "del", bridge_name(std::to_string(pid))}));
  }
}

}  // namespace

NetworkNamespaces::NetworkNamespaces(int nodes)
    : id_(std::to_string(::getpid())),
      subnet_(kSubnets + std::to_string(::getpid() % kSubnetsMax)),
      fds_(static_cast<size_t>(nodes), -1) {}

NetworkNamespaces::~NetworkNamespaces() {
  for (size_t node = 0; node < fds_.size(); ++node) {
    if (fds_[node] >= 0) ::close(fds_[node]);
    remove_node(id_, static_cast<int>(node));
  }
  static_cast<void>(ip({"link", "del", bridge_name(id_)}));
}

Result<std::unique_ptr<NetworkNamespaces>> NetworkNamespaces::create(int nodes) {
  if (::geteuid() != 0) {
    return Error{
        ErrorCode::kInvalid,
        "--network_namespaces needs root, because it changes the machine's networks: leave it out, or run as root"};
  }
  remove_leftovers();
  std::unique_ptr<NetworkNamespaces> namespaces(new NetworkNamespaces(nodes));
  Status made = namespaces->make_bridge();
  for (int node = 0; made.ok() && node < nodes; ++node) made = namespaces->make_node(node);
  if (!made.ok()) return made.error().with_context("--network_namespaces");
  return namespaces;
}

Status NetworkNamespaces::make_bridge() {
  const std::string bridge = bridge_name(id_);
  TRY(ip({"link", "add", bridge, "type", "bridge"}));
  TRY(ip({"address", "add", subnet_ + ".1/24", "dev", bridge}));
  return ip({"link", "set", bridge, "up"});
}

Status NetworkNamespaces::make_node(int node) {
  const std::string name = namespace_name(id_, node);
  const std::string link = link_name(id_, node);
  TRY(ip({"netns", "add", name}));
  TRY(ip({"link", "add", link, "type", "veth", "peer", "name", kLinkInNamespace, "netns", name}));
  TRY(ip({"link", "set", link, "master", bridge_name(id_), "up"}));
  TRY(ip({"-n", name, "address", "add", address(node) + "/24", "dev", kLinkInNamespace}));
  TRY(ip({"-n", name, "link", "set", "lo", "up"}));
  TRY(ip({"-n", name, "link", "set", kLinkInNamespace, "up"}));
  const std::string path = std::string(kNamespacesFolder) + "/" + name;
  fds_[static_cast<size_t>(node)] = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd(node) >= 0) return {};
  return Error{ErrorCode::kUnavailable, path + ": " + std::strerror(errno)};
}

std::string NetworkNamespaces::address(int node) const {
  return subnet_ + "." + std::to_string(kFirstNodeAddress + node);
}

}  // namespace lockstep
