#include "runner/cli/node_number.h"

#include <fcntl.h>
#include <netdb.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <unistd.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <cerrno>
#include <cstring>
#include <memory>
#include <thread>

#include "runner/agent/control_socket.h"
#include "runner/base/clock.h"
#include "runner/base/fd.h"
#include "runner/base/line_channel.h"
#include "runner/base/tcp_listener.h"

namespace lockstep {
namespace {

constexpr std::chrono::milliseconds kRetryInterval{250};
constexpr std::chrono::seconds kAnswerTimeout{10};

using Addresses = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;

Addresses resolve(const std::string& host, int port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found) != 0) found = nullptr;
  return {found, &::freeaddrinfo};
}

// An address can be bound only where it is.
bool is_here(const addrinfo* addresses) {
  for (const addrinfo* at = addresses; at != nullptr; at = at->ai_next) {
    const Fd fd(::socket(at->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    sockaddr_storage address{};
    std::memcpy(&address, at->ai_addr, at->ai_addrlen);
    reinterpret_cast<sockaddr_in*>(&address)->sin_port = 0;  // at the same place as sin6_port
    if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), at->ai_addrlen) == 0) return true;
  }
  return false;
}

// Of the agents on this machine the first that asks, as long as it lives. (It listens at the port a moment later.)
bool takes_port(int port) {
  const std::string folder = program_runs_folder();
  if (!folder.empty()) {
    const std::string path = folder + "/coordinator-" + std::to_string(port);
    Fd lock(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    if (lock.get() >= 0 && ::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) return false;
    lock.release();  // held until this process ends
  }
  boost::asio::io_context loop;
  boost::asio::ip::tcp::acceptor acceptor(loop);
  return !open_listener(acceptor, port);
}

// nullopt: no answer, or a refusal that may pass; `problem` says which.
Result<std::optional<int>> ask(const addrinfo* address, const Greet& greet, std::string& problem) {
  Fd fd(::socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const timeval timeout{.tv_sec = kAnswerTimeout.count(), .tv_usec = 0};
  ::setsockopt(fd.get(), SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof(timeout));
  if (::connect(fd.get(), address->ai_addr, address->ai_addrlen) != 0) {
    problem = std::strerror(errno);
    return std::optional<int>();
  }
  LineChannel channel(fd.release(), kGreetingBytesMax);
  const Status sent = channel.write_line(encode(NodeMessage(greet)));
  const Result<bool> is_readable = sent.ok() ? channel.wait_readable(kAnswerTimeout) : Result<bool>(sent.error());
  if (!is_readable.ok() || !*is_readable) {
    problem = is_readable.ok() ? "no answer" : is_readable.error().message;
    return std::optional<int>();
  }
  const Result<std::optional<std::string>> line = channel.read_line();
  if (!line.ok() || !*line) {
    problem = "it closed the connection";
    return std::optional<int>();
  }
  const Result<CoordinatorMessage> message = decode_coordinator_message(**line);
  if (!message.ok()) return invalid("it does not answer like a coordinator: " + message.error().message);
  if (const auto* const number = std::get_if<NodeNumber>(&*message)) return std::optional<int>(number->node_rank);
  const auto* const refused = std::get_if<Refused>(&*message);
  if (refused == nullptr) return invalid("it answered with another message than a node number");
  if (!refused->retry) return invalid(refused->message);
  problem = refused->message;
  return std::optional<int>();
}

}  // namespace

Result<int> find_node_number(const std::string& host, int port, const Greet& greet, std::chrono::seconds patience) {
  const TimePoint until = now() + patience;
  std::string problem;
  while (true) {
    const Addresses addresses = resolve(host, port);
    if (addresses == nullptr) problem = "the name does not resolve";
    if (is_here(addresses.get()) && takes_port(port)) return 0;
    for (const addrinfo* at = addresses.get(); at != nullptr; at = at->ai_next) {
      Result<std::optional<int>> number = ask(at, greet, problem);
      if (!number.ok()) return number.error().with_context(host + ":" + std::to_string(port));
      if (*number) return **number;
    }
    if (now() >= until) break;
    std::this_thread::sleep_for(kRetryInterval);
  }
  return Error{ErrorCode::kUnavailable, "no --node_rank, and node 0's agent at " + host + ":" + std::to_string(port) +
                                            " has not said which node this is for " + seconds_text(patience) + " (" +
                                            problem + ")"};
}

}  // namespace lockstep
