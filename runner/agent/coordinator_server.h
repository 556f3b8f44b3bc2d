// CoordinatorServer: node 0's agent as the coordinator: connections and store around the pure Coordinator.
//
// Role: listens, frames, limits and closes; hands every message to step() (recovery/coordinator.h) and does what it
// says. Node 0's own member is connected in the same process through LocalCoordinatorLink, with the same messages.
// Whatever a peer sends, it costs at most its own connection.
// Threads: the event loop's only. Lifetime: the loop does not run any more when the server goes.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runner/agent/coordinator_link.h"
#include "runner/agent/job_record.h"
#include "runner/agent/line_socket.h"
#include "runner/recovery/coordinator.h"
#include "runner/recovery/store.h"

namespace lockstep {

// Strangers that have not greeted yet; the one that has waited longest goes first when there are more.
inline constexpr size_t kStrangersMax = 64;
// Complaints about connections that make no sense, and refusals: one line of each per so long, with the number of those
// left out.
inline constexpr std::chrono::seconds kComplaintInterval{10};

class CoordinatorServer {
 public:
  struct Handlers {
    std::function<void(const Note&)> on_note;
    std::function<void(const GroupBreak&)> on_break;
    // What the newest break was because of, when it is known better than when it was told.
    std::function<void(const CauseLearned&)> on_cause;
    std::function<void(const GroupPlaced&)> on_placed;
    // Before the first placement: a group of an earlier coordinator had made the commit `newest` when it broke.
    std::function<void(const GroupBreak&, const Commit& newest)> on_broken_before;
    // A worker of another node has ended; its agent starts it again, or gives up.
    std::function<void(int node, const Broken&)> on_remote_end;
    std::function<void(int node, const LadderDecision&)> on_remote_decision;
  };

  CoordinatorServer(boost::asio::io_context& loop, const CoordinatorOptions& options, Handlers handlers);
  ~CoordinatorServer();
  CoordinatorServer(const CoordinatorServer&) = delete;
  CoordinatorServer& operator=(const CoordinatorServer&) = delete;

  // On all addresses; 0: any free port. kUnavailable when the port is taken.
  Status listen(int port);
  [[nodiscard]] int port() const;

  // A member in this process. Its handlers are called from the loop, never from inside say().
  struct LocalHandlers {
    std::function<void(const CoordinatorMessage&)> on_said;
    std::function<void(const std::string& why)> on_closed;
  };
  ConnectionId connect(LocalHandlers handlers);
  void say(ConnectionId connection, const MemberMessage& message);
  void disconnect(ConnectionId connection);

  void set_wanted_nodes(int nodes) { feed(SetWantedNodes{nodes}); }
  [[nodiscard]] const CoordinatorState& state() const { return state_; }
  // The reason of the last decision, in words.
  [[nodiscard]] const std::string& last_note() const { return last_note_; }
  // Of node 0, as the other nodes reach it; empty when they are all on this machine.
  [[nodiscard]] const std::string& local_address() const { return local_address_; }
  // Of others than the members in this process, strangers included.
  [[nodiscard]] bool has_connections() const { return !strangers_.empty() || !peers_.empty(); }

 private:
  struct Peer {
    std::shared_ptr<LineSocket> socket;
    std::string name;   // address and port, for notes
    std::string local;  // our address on this connection
    TimePoint since;
    bool joined = false;
  };

  // Lines of a kind that a stranger can cause as often as he likes.
  struct Seldom {
    std::optional<TimePoint> last;
    int left_out = 0;  // since
  };

  // What a step may change.
  struct GroupBefore {
    GroupState group;
    uint64_t placed;
    bool regrouping;
    std::string cause;
  };

  void accept();
  void on_accept(boost::asio::ip::tcp::socket socket);
  void make_room();
  void on_line(ConnectionId connection, const std::string& line);
  void on_closed(ConnectionId connection, const std::string& why);
  void after_message(ConnectionId connection);
  void complain(const std::string& text, TimePoint now) { say_seldom(complaints_, text, now); }
  void say_seldom(Seldom& lines, const std::string& text, TimePoint now);

  void feed(const CoordinatorEvent& event);
  void tell_changes(const CoordinatorEvent& event, const GroupBefore& before, double silent_seconds, TimePoint at);
  void tell_of_remote_end(const CoordinatorEvent& event, uint64_t placed);
  void tell_of_remote_decision(const CoordinatorEvent& event);
  void tell_of_break_before(const CoordinatorEvent& event, uint64_t placed, TimePoint at);
  void perform(const Send& output);
  void perform(const Close& output);
  void perform(const BeginGeneration& output);
  void perform(const AskStore& output);
  void perform(const Note& output);
  void answer(const std::vector<StoreAnswer>& answers);
  int client_of(ConnectionId connection, int local_rank);
  void forget_clients(ConnectionId connection);
  void arm_timer();
  void on_timer();

  boost::asio::io_context& loop_;
  Handlers handlers_;
  CoordinatorState state_;
  KeyValueStore store_;
  boost::asio::ip::tcp::acceptor acceptor_;
  boost::asio::steady_timer accept_timer_;
  boost::asio::steady_timer timer_;
  std::optional<TimePoint> armed_;
  // Connections are numbered in the order of their coming: the first stranger has waited longest. Apart from those that
  // have greeted, so that nothing looks at all of these.
  std::map<ConnectionId, Peer> strangers_;
  std::map<ConnectionId, Peer> peers_;
  std::map<ConnectionId, std::shared_ptr<LocalHandlers>> locals_;
  ConnectionId last_connection_ = 0;
  std::map<std::pair<ConnectionId, int>, int> clients_;  // (connection, local rank) -> the store's name for it
  std::map<int, std::pair<ConnectionId, int>> clients_by_number_;
  int last_client_ = 0;
  std::string local_address_;
  std::string last_note_;
  Seldom complaints_;
  Seldom refusals_;  // apart, so that who only knocks does not hide an agent with a wrong token
};

// Node 0's member and the coordinator beside it.
class LocalCoordinatorLink final : public CoordinatorLink {
 public:
  // `server` outlives the link.
  LocalCoordinatorLink(CoordinatorServer& server, Greet greet, Handlers handlers);

  void seek() override;
  void hint(const boost::asio::ip::address&) override {}  // it is here
  void send(const MemberMessage& message) override;
  void close() override;
  [[nodiscard]] std::string local_address() const override { return server_.local_address(); }
  [[nodiscard]] std::string peer() const override { return ""; }
  [[nodiscard]] bool is_idle() const override { return true; }

 private:
  void on_said(const CoordinatorMessage& message);

  CoordinatorServer& server_;
  Greet greet_;
  Handlers handlers_;
  ConnectionId connection_ = 0;
};

}  // namespace lockstep
