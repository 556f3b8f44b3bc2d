// CoordinatorLink: an agent's link to its coordinator: over TCP from other nodes, within the process on node 0
// (coordinator_server.h).
//
// Role: finds coordinators, keeps the connection to the chosen one, carries messages. Its only decision is which of
// several answers to use (choose_answer).
// Threads: the event loop's only. Handlers are called from the loop, never from inside a call of theirs.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/address.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "runner/agent/line_socket.h"
#include "runner/contract/coordination.h"

namespace lockstep {

// After the first coordinator has answered, others may answer for this long. A DNS record outlives its pod, so an old
// coordinator may answer before the new one.
inline constexpr std::chrono::milliseconds kOtherAnswersTimeout{500};
inline constexpr std::chrono::seconds kConnectTimeout{2};
inline constexpr std::chrono::seconds kResolveTimeout{5};
inline constexpr std::chrono::milliseconds kSeekBackoffInitial{50};
inline constexpr std::chrono::milliseconds kSeekBackoffMax{1000};
inline constexpr size_t kCoordinatorAddressesMax = 16;
// A node that is connected elsewhere than where the operator says asks there again at this interval, because node 0's
// pod may run for a while before its agent listens. For at least a minute in all, twice the TTL of a DNS record; for
// twice that where nothing answers at the address.
inline constexpr std::chrono::seconds kAskAgainInterval{2};
inline constexpr int kAskAgainMax = 30;
// A store value holds at most a few MB of hex.
inline constexpr size_t kCoordinationLineBytesMax = size_t{16} << 20;
inline constexpr size_t kCoordinationQueueBytesMax = size_t{64} << 20;

class CoordinatorLink {
 public:
  struct Handlers {
    std::function<void(const Welcome&)> on_found;
    std::function<void(const Refused&)> on_refused;
    std::function<void(const CoordinatorMessage&)> on_message;
    std::function<void(const std::string& why)> on_lost;
    std::function<void(const std::string& problem)> on_problem;  // why a round of seeking failed; after each round
  };
  virtual ~CoordinatorLink() = default;

  // Drops the connection, if any, and looks for a coordinator until one answers. Does nothing while it is looking
  // already.
  virtual void seek() = 0;
  // The operator says that node 0 is at this address: from now on it is asked besides the addresses of the name. A
  // connection to a coordinator elsewhere is dropped only for a newer coordinator.
  virtual void ask_also(const boost::asio::ip::address& address) = 0;
  virtual void send(const NodeMessage& message) = 0;
  // Closes the link after sending what is queued. No handler is called any more.
  virtual void close() = 0;
  // This node's address as the coordinator and the other nodes reach it; empty on loopback, within a process, or if
  // unknown.
  [[nodiscard]] virtual std::string local_address() const = 0;
  // The coordinator's address for messages; empty when not connected or in this process.
  [[nodiscard]] virtual std::string peer() const = 0;
  // True when everything has been sent.
  [[nodiscard]] virtual bool is_idle() const = 0;
};

// A coordinator's answer to a Greet.
using GreetingAnswer = std::variant<Welcome, Refused>;
// The index of the best answer: the Welcome with the highest generation; else a refusal with `retry` (an outdated DNS
// record may lead to the coordinator of another job); else the first. `answers` is not empty. Pure.
size_t choose_answer(const std::vector<GreetingAnswer>& answers);

// How long a node waits between two rounds of seeking: from half of the backoff to all of it, by its rank, so that a
// thousand nodes that lost the coordinator at the same time do not all come back at the same time. Pure.
std::chrono::milliseconds seek_pause(std::chrono::milliseconds backoff, int node_rank);

struct CoordinatorAddress {
  std::string host;
  int port = 29400;
};

// A round sends Greet to every address of the name and to the one from the operator, which is asked at once, while the
// name is still being resolved. The newest coordinator that answers is used. While the link is connected elsewhere than
// where the operator says, such rounds look for a newer coordinator. A refusal from an address that only the operator
// has named is retried.
class TcpCoordinatorLink final : public CoordinatorLink, public std::enable_shared_from_this<TcpCoordinatorLink> {
 public:
  using Tcp = boost::asio::ip::tcp;
  // Replaces the name service in tests.
  using Resolve = std::function<void(std::function<void(boost::system::error_code, std::vector<Tcp::endpoint>)>)>;

  TcpCoordinatorLink(boost::asio::io_context& loop, CoordinatorAddress address, Greet greet, Handlers handlers);
  ~TcpCoordinatorLink() override;
  TcpCoordinatorLink(const TcpCoordinatorLink&) = delete;
  TcpCoordinatorLink& operator=(const TcpCoordinatorLink&) = delete;
  void set_resolve(Resolve resolve) { resolve_ = std::move(resolve); }

  void seek() override;
  void ask_also(const boost::asio::ip::address& address) override;
  void send(const NodeMessage& message) override;
  void close() override;
  [[nodiscard]] std::string local_address() const override;
  [[nodiscard]] std::string peer() const override;
  [[nodiscard]] bool is_idle() const override;

 private:
  // One address of this round.
  struct Attempt {
    Tcp::endpoint endpoint;
    std::unique_ptr<Tcp::socket> connecting;
    std::shared_ptr<LineSocket> socket;  // once connected
    Tcp::endpoint local;
    std::optional<GreetingAnswer> answer;
    std::string problem;   // not empty: why it will not answer
    bool by_name = false;  // the name resolves to it
    bool dropped = false;  // its result is not wanted any more
    [[nodiscard]] bool is_settled() const { return answer || !problem.empty(); }
    [[nodiscard]] const Welcome* welcome() const { return answer ? std::get_if<Welcome>(&*answer) : nullptr; }
  };

  using Action = void (TcpCoordinatorLink::*)();

  // Of the search; the link may be connected in each of them.
  enum class Stage { kIdle, kPausing, kAsking, kClosed };

  void pause(std::chrono::milliseconds duration);
  void begin_round();
  void on_resolved(const boost::system::error_code& error, const std::vector<Tcp::endpoint>& endpoints);
  void ask(const Tcp::endpoint& endpoint, bool by_name);
  void connect(const std::shared_ptr<Attempt>& attempt);
  void greet(const std::shared_ptr<Attempt>& attempt);
  void on_attempt_line(const std::shared_ptr<Attempt>& attempt, const std::string& line);
  void on_attempt_closed(const std::shared_ptr<Attempt>& attempt, const std::string& why);
  void on_message(const CoordinatorMessage& message);
  void settle(const std::shared_ptr<Attempt>& attempt);
  [[nodiscard]] bool has_answer() const;
  [[nodiscard]] bool is_round_settled() const;
  void end_round();
  void use(const std::shared_ptr<Attempt>& best);
  void move_to_a_newer(const Attempt* best);
  [[nodiscard]] bool has_operators_answered() const;
  void fail_round();
  [[nodiscard]] std::string problems() const;
  static void drop(Attempt& attempt);
  void end_search();
  void drop_chosen();
  // Calls `action` after `timeout`, unless another timeout was set, the round or the stage has changed by then.
  void after(std::chrono::milliseconds timeout, Action action);

  boost::asio::io_context& loop_;
  CoordinatorAddress address_;
  Greet greet_;
  Handlers handlers_;
  Resolve resolve_;
  Tcp::resolver resolver_;
  boost::asio::steady_timer timer_;
  Stage stage_ = Stage::kIdle;
  uint64_t round_ = 0;  // callbacks of an earlier round are stale
  std::chrono::milliseconds backoff_{0};
  bool is_resolving_ = false;  // the name service was asked and has not answered
  bool is_resolved_ = false;   // it has answered in this round
  std::string name_problem_;   // why the name gave no address in this round
  std::vector<std::shared_ptr<Attempt>> attempts_;
  std::shared_ptr<Attempt> chosen_;         // the connection to the coordinator
  std::optional<Tcp::endpoint> operators_;  // the address from the operator
  int ask_again_left_ = 0;                  // rounds while connected elsewhere
  bool joined_ = false;                     // a message was sent on the chosen connection
  bool refused_ = false;                    // the coordinator of the chosen connection has answered Refused
};

}  // namespace lockstep
