// ControlSocket: a Unix socket in the run's folder through which the owner of the run asks the agent (`lockstep
// chaos`, tests), and the launcher of several agents tells it what it decided.
//
// Protocol: one JSON object per line, {"command": "…", …}; one line back, {"ok": true, …} or {"error": "…"}. Commands:
//   status
//   recoveries  after, seconds   node 0: answers when there were more than `after` recoveries, or after `seconds`
//   decision    a restart decision of the launcher that started this agent, for /status and /metrics: the fields of
//               RestartDecision (contract/coordination.h)
// Threads: the event loop's only, except connect_control_socket: any.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "runner/agent/line_socket.h"
#include "runner/base/json.h"
#include "runner/base/result.h"
#include "runner/contract/coordination.h"
#include "runner/contract/messages.h"

namespace lockstep {

inline constexpr size_t kControlClientsMax = 16;
inline constexpr size_t kControlLineBytesMax = size_t{64} << 10;
inline constexpr size_t kControlQueueBytesMax = size_t{4} << 20;
inline constexpr double kControlSecondsMax = 86'400;
inline constexpr std::chrono::seconds kControlConnectTimeout{1};

struct GetStatus {};
struct WaitForRecoveries {
  int64_t after = 0;
  double seconds = 0.0;  // longest time to wait for them
};
struct ReportDecision {
  RestartDecision decision;
};
using ControlRequest = std::variant<GetStatus, WaitForRecoveries, ReportDecision>;

// kInvalid: names the wrong command or field and what was expected. Pure.
Result<ControlRequest> parse_control_request(std::string_view line);
// The request line for a ReportDecision. Pure.
std::string decision_request(const RestartDecision& decision);

// "agent.sock" for node 0, "agent-3.sock".
std::string control_socket_name(int node_rank);
// Where the runs of `lockstep launch` on this machine have their folders of sockets: below TMPDIR, for this user alone.
// Makes it. Empty: it cannot be made, or somebody else owns it.
std::string program_runs_folder();
// Node ranks of the sockets in `folder`, ascending.
std::vector<int> control_sockets_in(const std::string& folder);

class ControlSocket {
 public:
  // Sends the answer to one request. To be called once, now or later; does nothing when the client has disconnected.
  class Answer {
   public:
    void operator()(const OrderedJson& json) const;
    [[nodiscard]] bool is_awaited() const;

   private:
    friend class ControlSocket;
    Answer(ControlSocket* control, uint64_t client) : control_(control), client_(client), alive_(control->alive_) {}

    ControlSocket* control_;
    uint64_t client_;
    std::weak_ptr<bool> alive_;
  };
  using OnRequest = std::function<void(const ControlRequest&, const Answer&)>;

  // Makes `folder` if it does not exist, and replaces the socket of a dead agent. Accessible to the owner only (0600).
  // kConflict: another agent is listening there; kUnavailable: the folder or the socket cannot be made.
  static Result<std::unique_ptr<ControlSocket>> open(boost::asio::io_context& loop, const std::string& folder,
                                                     int node_rank, OnRequest on_request);
  // Removes the socket, unless another agent has replaced it, and the folder, if open() made it and it is empty.
  ~ControlSocket();
  ControlSocket(const ControlSocket&) = delete;
  ControlSocket& operator=(const ControlSocket&) = delete;

  [[nodiscard]] bool is_idle() const;

 private:
  ControlSocket(boost::asio::io_context& loop, int folder_fd, std::string name, OnRequest on_request);
  Status listen();
  void accept();
  void on_accept(boost::asio::local::stream_protocol::socket socket);
  void on_line(uint64_t client, const std::string& line);

  boost::asio::io_context& loop_;
  int folder_fd_;
  std::string name_;
  OnRequest on_request_;
  boost::asio::local::stream_protocol::acceptor acceptor_;
  uint64_t inode_ = 0;
  std::string made_folder_;  // the folder that open() made; empty: it existed
  uint64_t last_client_ = 0;
  std::map<uint64_t, std::shared_ptr<LineSocket>> clients_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);  // answers may outlive the socket
};

// A blocking connection for a client. With a frozen agent it returns after at most kControlConnectTimeout. kNotFound:
// there is no socket; kGone: nothing listens on it any more; kUnavailable: the agent accepts no connection.
Result<int> connect_control_socket(const std::string& folder, int node_rank);

}  // namespace lockstep
