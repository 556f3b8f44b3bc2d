// CoordinatorServer: the I/O of the coordinator in node 0's agent: connections and the store, around the pure state
// machine of recovery/coordinator.h.
//
// Role: accepts connections, splits them into lines, enforces limits; passes every message to step() and performs the
// outputs that it returns. Node 0's own agent is connected in the same process through LocalCoordinatorLink, with the
// same messages. Whatever a peer sends, at worst its own connection is closed.
// Threads: the event loop's only. Lifetime: the loop must have stopped before the server is destroyed.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runner/agent/coordinator_link.h"
#include "runner/agent/line_socket.h"
#include "runner/recovery/coordinator.h"
#include "runner/recovery/store.h"

namespace lockstep {

// So many connections that have not sent a Greet yet (unauthenticated) are kept; one for each node if the job has more
// nodes, because all of them may come at once. When there are more, the oldest is closed.
inline constexpr size_t kUnauthenticatedMin = 64;
// So many lists of values are kept encoded: those of 8,192 ranks, 128 at a time.
inline constexpr size_t kEncodedValuesMax = 64;
// Warnings about invalid connections, and about refusals, are limited to one line of each kind per this time; the line
// says how many were left out.
inline constexpr std::chrono::seconds kWarningInterval{10};

class CoordinatorServer {
 public:
  struct Handlers {
    std::function<void(const Note&)> on_note;
    std::function<void(const GroupNews&)> on_news;
  };

  CoordinatorServer(boost::asio::io_context& loop, const CoordinatorOptions& options, Handlers handlers);
  ~CoordinatorServer();
  CoordinatorServer(const CoordinatorServer&) = delete;
  CoordinatorServer& operator=(const CoordinatorServer&) = delete;

  // Listens on all addresses; port 0: any free one. kUnavailable when the port is taken.
  Status listen(int port);
  [[nodiscard]] int port() const;

  // Connects the agent of this process. Its handlers are called from the loop, never from inside send_from_local().
  struct LocalHandlers {
    std::function<void(const CoordinatorMessage&)> on_message;
    std::function<void(const std::string& why)> on_closed;
  };
  ConnectionId connect(LocalHandlers handlers);
  void send_from_local(ConnectionId connection, const NodeMessage& message);
  void disconnect(ConnectionId connection);

  void set_wanted_nodes(int nodes) { handle(SetWantedNodes{nodes}); }
  [[nodiscard]] const CoordinatorState& state() const { return state_; }
  // The reason of the last decision, in words.
  [[nodiscard]] const std::string& last_note() const { return last_note_; }
  // Node 0's address as the other nodes reach it; empty when all nodes are on this machine.
  [[nodiscard]] const std::string& local_address() const { return local_address_; }
  // Are there connections from outside this process, including those that have not greeted?
  [[nodiscard]] bool has_connections() const { return !unauthenticated_.empty() || !peers_.empty(); }

 private:
  struct Peer {
    std::shared_ptr<LineSocket> socket;
    std::string name;   // address and port, for notes
    std::string local;  // our address on this connection
    TimePoint since;
    bool joined = false;
  };

  // State for limiting the rate of one kind of warning that any peer can cause as often as it likes.
  struct RateLimitedLog {
    std::optional<TimePoint> last;
    int left_out = 0;  // since
  };

  void accept();
  void on_accept(boost::asio::ip::tcp::socket socket);
  void make_room();
  void on_line(ConnectionId connection, const std::string& line);
  void on_closed(ConnectionId connection, const std::string& why);
  void after_message(ConnectionId connection);
  void warn_rate_limited(RateLimitedLog& log, const std::string& text, TimePoint at);

  void handle(const CoordinatorEvent& event);
  void perform(const Send& output);
  void perform(const Close& output);
  void perform(const BeginGeneration& output);
  void perform(const AskStore& output);
  void perform(const Note& output);
  void perform(const GroupNews& output) { handlers_.on_news(output); }
  void answer(std::vector<StoreAnswer> answers);
  const std::string& encoded(const std::vector<std::string>& values);
  void arm_timer();
  void on_timer();

  boost::asio::io_context& loop_;
  Handlers handlers_;
  CoordinatorState state_;
  KeyValueStore store_;
  std::map<std::vector<std::string>, std::string> encoded_values_;  // of this generation's answers with several values
  boost::asio::ip::tcp::acceptor acceptor_;
  boost::asio::steady_timer accept_timer_;
  boost::asio::steady_timer timer_;
  std::optional<TimePoint> armed_;
  // Connections are numbered in the order in which they were accepted, so the first one has waited longest. They
  // are kept apart from peers that have greeted, so that the timer need not scan all peers.
  std::map<ConnectionId, Peer> unauthenticated_;
  std::map<ConnectionId, Peer> peers_;
  std::map<ConnectionId, std::shared_ptr<LocalHandlers>> locals_;
  ConnectionId last_connection_ = 0;
  std::string local_address_;
  std::string last_note_;
  RateLimitedLog connection_warnings_;
  RateLimitedLog accept_warnings_;
  RateLimitedLog refusals_;  // separate, so that warnings about port scans do not hide an agent with a wrong token
};

// The link between node 0's agent and the coordinator in the same process.
class LocalCoordinatorLink final : public CoordinatorLink {
 public:
  // `server` outlives the link.
  LocalCoordinatorLink(CoordinatorServer& server, Greet greet, Handlers handlers);

  void seek() override;
  void ask_also(const boost::asio::ip::address&) override {}  // the coordinator is in this process
  void send(const NodeMessage& message) override;
  void close() override;
  [[nodiscard]] std::string local_address() const override { return server_.local_address(); }
  [[nodiscard]] std::string peer() const override { return ""; }
  [[nodiscard]] bool is_idle() const override { return true; }

 private:
  void on_message(const CoordinatorMessage& message);

  CoordinatorServer& server_;
  Greet greet_;
  Handlers handlers_;
  ConnectionId connection_ = 0;
};

}  // namespace lockstep
