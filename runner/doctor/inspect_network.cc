#include <arpa/inet.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <future>
#include <memory>
#include <set>

#include "runner/base/kernel_file.h"
#include "runner/contract/env_names.h"
#include "runner/doctor/collect.h"
#include "runner/doctor/machine_files.h"

namespace lockstep::doctor {
namespace {

namespace fs = std::filesystem;

constexpr std::chrono::milliseconds kConnectTimeout{1500};

std::string address_text(const sockaddr* address) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  const void* bytes = nullptr;
  if (address->sa_family == AF_INET) bytes = &reinterpret_cast<const sockaddr_in*>(address)->sin_addr;
  if (address->sa_family == AF_INET6) bytes = &reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr;
  if (bytes == nullptr) return "";
  return ::inet_ntop(address->sa_family, bytes, text.data(), text.size()) == nullptr ? "" : text.data();
}

// ---- ports ----

// Tries to listen on the port as Lockstep's programs do: on IPv6 and IPv4, else on IPv4 only. Returns 0 or an errno
// value.
int try_to_listen(int port) {
  const int fd = ::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int on = 1;
  const int off = 0;
  if (fd >= 0) {
    sockaddr_in6 any{};
    any.sin6_family = AF_INET6;
    any.sin6_port = htons(static_cast<uint16_t>(port));
    ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    ::setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    const bool listens = ::bind(fd, reinterpret_cast<sockaddr*>(&any), sizeof any) == 0 && ::listen(fd, 1) == 0;
    const int error = errno;
    ::close(fd);
    if (listens) return 0;
    if (error != EADDRNOTAVAIL && error != EAFNOSUPPORT) return error;
  }
  const int fd4 = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd4 < 0) return errno;
  sockaddr_in any{};
  any.sin_family = AF_INET;
  any.sin_port = htons(static_cast<uint16_t>(port));
  ::setsockopt(fd4, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  const bool listens = ::bind(fd4, reinterpret_cast<sockaddr*>(&any), sizeof any) == 0 && ::listen(fd4, 1) == 0;
  const int error = errno;
  ::close(fd4);
  return listens ? 0 : error;
}

bool has_socket(const fs::path& process, const std::set<std::string>& sockets) {
  std::error_code error;
  for (fs::directory_iterator it(process / "fd", error), end; !error && it != end; it.increment(error)) {
    std::error_code unreadable;
    if (sockets.contains(fs::read_symlink(it->path(), unreadable).string())) return true;
  }
  return false;
}

// The program that listens on the port, "python3 (pid 123)"; empty when this user may not see it.
std::string holder_of(int port) {
  std::set<std::string> sockets;
  for (const char* const file : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    for (const uint64_t inode : listening_inodes(read_kernel_file(file), port)) {
      sockets.insert("socket:[" + std::to_string(inode) + "]");
    }
  }
  if (sockets.empty()) return "";
  std::error_code error;
  for (fs::directory_iterator it("/proc", error), end; !error && it != end; it.increment(error)) {
    const std::string pid = it->path().filename().string();
    if (pid.find_first_not_of("0123456789") != std::string::npos || !has_socket(it->path(), sockets)) continue;
    std::string name = read_kernel_file(it->path() / "comm");
    while (!name.empty() && name.back() == '\n') name.pop_back();
    return name.append(" (pid ").append(pid).append(")");
  }
  return "";
}

PortFacts inspect_port(int port) {
  PortFacts facts{.port = port};
  const int error = try_to_listen(port);
  if (error == 0) return facts;
  facts.problem = error == EADDRINUSE ? "taken by a program of another user" : std::strerror(error);
  if (error == EADDRINUSE) facts.holder = holder_of(port);
  return facts;
}

// ---- names and addresses ----

std::vector<std::string> resolve(const std::string& name) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (::getaddrinfo(name.c_str(), nullptr, &hints, &found) != 0) return {};
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> guard(found, ::freeaddrinfo);
  std::vector<std::string> addresses;
  for (const addrinfo* at = found; at != nullptr; at = at->ai_next) {
    std::string address = address_text(at->ai_addr);
    const bool is_new = std::find(addresses.begin(), addresses.end(), address) == addresses.end();
    if (!address.empty() && is_new) addresses.push_back(std::move(address));
  }
  return addresses;
}

void inspect_interfaces(NetworkFacts& facts) {
  ifaddrs* found = nullptr;
  if (::getifaddrs(&found) != 0) return;
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> guard(found, ::freeifaddrs);
  std::set<std::string> names;
  for (const ifaddrs* at = found; at != nullptr; at = at->ifa_next) {
    names.insert(at->ifa_name);
    if (at->ifa_addr == nullptr || (at->ifa_flags & IFF_UP) == 0) continue;
    std::string address = address_text(at->ifa_addr);
    if (!address.empty()) facts.own_addresses.push_back(std::move(address));
  }
  facts.interfaces.assign(names.begin(), names.end());
}

Reach reach_of_error(int error) {
  if (error == 0) return Reach::kConnected;
  if (error == ECONNREFUSED) return Reach::kRefused;
  return error == ETIMEDOUT ? Reach::kTimeout : Reach::kUnreachable;
}

Reach try_to_connect(const std::string& address, int port) {
  const bool is_v6 = address.find(':') != std::string::npos;
  const int fd = ::socket(is_v6 ? AF_INET6 : AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return Reach::kUnreachable;
  sockaddr_storage target{};
  socklen_t size = 0;
  if (is_v6) {
    auto& v6 = reinterpret_cast<sockaddr_in6&>(target);
    v6.sin6_family = AF_INET6;
    v6.sin6_port = htons(static_cast<uint16_t>(port));
    ::inet_pton(AF_INET6, address.c_str(), &v6.sin6_addr);
    size = sizeof v6;
  } else {
    auto& v4 = reinterpret_cast<sockaddr_in&>(target);
    v4.sin_family = AF_INET;
    v4.sin_port = htons(static_cast<uint16_t>(port));
    ::inet_pton(AF_INET, address.c_str(), &v4.sin_addr);
    size = sizeof v4;
  }
  int error = ::connect(fd, reinterpret_cast<const sockaddr*>(&target), size) == 0 ? 0 : errno;
  if (error == EINPROGRESS) {
    pollfd writable{.fd = fd, .events = POLLOUT, .revents = 0};
    socklen_t length = sizeof error;
    const bool has_answer = ::poll(&writable, 1, static_cast<int>(kConnectTimeout.count())) > 0;
    if (!has_answer || ::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length) != 0) error = ETIMEDOUT;
  }
  ::close(fd);
  return reach_of_error(error);
}

void inspect_coordinator(NetworkFacts& facts, const Request& request) {
  if (request.coordinator_host.empty()) return;
  facts.coordinator_addresses = resolve(request.coordinator_host);
  for (const std::string& address : facts.coordinator_addresses) {
    const auto& own = facts.own_addresses;
    if (std::find(own.begin(), own.end(), address) != own.end()) {
      facts.coordinator = Reach::kOurs;
      return;
    }
  }
  for (const std::string& address : facts.coordinator_addresses) {
    facts.coordinator = try_to_connect(address, request.coordinator_port);
    if (facts.coordinator == Reach::kConnected || facts.coordinator == Reach::kRefused) return;
  }
}

}  // namespace

NetworkFacts inspect_network(const Request& request, const Environment& environment) {
  NetworkFacts facts;
  for (const int port : {request.status_port, request.coordinator_port, kTorchrunStorePort}) {
    if (port != 0) facts.ports.push_back(inspect_port(port));
  }
  facts.host_name = read_host_name();
  facts.gloo_interface = variable(environment, env::kGlooInterface);
  facts.nccl_interface = variable(environment, env::kNcclInterface);
  inspect_interfaces(facts);
  if (request.several_nodes()) facts.host_addresses = resolve(facts.host_name);
  inspect_coordinator(facts, request);
  return facts;
}

}  // namespace lockstep::doctor
