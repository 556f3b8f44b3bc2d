// CoordinatorLink: what a node's member has of its coordinator: over TCP from other nodes, in the same process on
// node 0 (coordinator_server.h).
//
// Role: finds coordinators, keeps the connection to the one that was chosen, carries messages. It decides nothing but
// which of several answers to hand on (choose_answer).
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

// After the first coordinator has answered, the others have this long: a DNS record lives on after its pod, and an old
// coordinator may be quicker than the new one.
inline constexpr std::chrono::milliseconds kOtherAnswersTimeout{500};
inline constexpr std::chrono::seconds kConnectTimeout{2};
inline constexpr std::chrono::seconds kResolveTimeout{5};
inline constexpr std::chrono::milliseconds kSeekBackoffInitial{50};
inline constexpr std::chrono::milliseconds kSeekBackoffMax{1000};
inline constexpr size_t kCoordinatorAddressesMax = 16;
// A node that is connected elsewhere than the operator says asks there this often: node 0's pod may run a while before
// its agent listens. For a minute in all, twice the life of a DNS record.
inline constexpr std::chrono::seconds kAskAsideInterval{2};
inline constexpr int kAskAsideTriesMax = 30;
// Joins that a coordinator where the operator sent us may refuse before the others that the name has count as much.
inline constexpr int kHintRefusalsMax = 3;
// A store value holds at most a few MB of hex.
inline constexpr size_t kCoordinationLineBytesMax = size_t{16} << 20;
inline constexpr size_t kCoordinationQueueBytesMax = size_t{64} << 20;

class CoordinatorLink {
 public:
  struct Handlers {
    std::function<void(const Welcome&)> on_found;
    std::function<void(const Refused&)> on_refused;
    std::function<void(const CoordinatorMessage&)> on_said;
    std::function<void(const std::string& why)> on_lost;
    std::function<void(const std::string& problem)> on_problem;  // of seeking, in words; said each time
  };
  virtual ~CoordinatorLink() = default;

  // Drops the connection, if any, and looks for a coordinator until one answers; nothing new when it is looking
  // already.
  virtual void seek() = 0;
  // Somebody who should know says that node 0 is at this address. It is asked beside what the name resolves to, and a
  // coordinator that runs elsewhere is let go of only for a newer one there.
  virtual void hint(const boost::asio::ip::address& address) = 0;
  virtual void send(const MemberMessage& message) = 0;
  // No handler is called any more; what was sent leaves.
  virtual void close() = 0;
  // Of this node, as the coordinator and the other nodes reach it; empty on loopback, in one process, or unknown.
  [[nodiscard]] virtual std::string local_address() const = 0;
  // Where the coordinator is, for people; empty when not connected or in this process.
  [[nodiscard]] virtual std::string peer() const = 0;
  // Nothing that was sent waits any more.
  [[nodiscard]] virtual bool is_idle() const = 0;
};

// IPv4 inside IPv6 as IPv4, so that one address is one value.
boost::asio::ip::address plain_address(const boost::asio::ip::address& address);

// What a coordinator said to a greeting.
using GreetingAnswer = std::variant<Welcome, Refused>;
// Of several: the Welcome with the highest generation; else a refusal that may be lifted (the old record of a pod may
// lead to a stranger by now); else the first one. The index into `answers`, which is not empty. Pure.
size_t choose_answer(const std::vector<GreetingAnswer>& answers);

struct CoordinatorAddress {
  std::string host;
  int port = 29400;
};

// A round of seeking asks every address that the name resolves to and takes the best answer. A hinted address is asked
// at once, while the name is still being resolved, and its Welcome ends the round: the operator's word is newer than a
// DNS record. It loses that right when the member turns away from who welcomed it there (an old coordinator that is
// still alive), and a refusal that only the hint led to is never the last word.
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
  void hint(const boost::asio::ip::address& address) override;
  void send(const MemberMessage& message) override;
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
    std::string problem;   // it will not answer
    bool by_name = false;  // the name leads there, not only a hint
    bool dropped = false;  // nobody waits for it any more
    [[nodiscard]] bool is_settled() const { return answer || !problem.empty(); }
  };

  using Action = void (TcpCoordinatorLink::*)();

  // kResolving: the name has not been answered for; only the hint is asked. kAsking: it is known who is asked.
  enum class Stage { kIdle, kBackingOff, kResolving, kAsking, kConnected, kClosed };

  void begin_round();
  void on_resolved(const boost::system::error_code& error, std::vector<Tcp::endpoint> endpoints);
  void ask_all(const std::vector<Tcp::endpoint>& endpoints);
  std::shared_ptr<Attempt> new_attempt(const Tcp::endpoint& endpoint);
  // In this round; nothing when it has failed.
  [[nodiscard]] std::shared_ptr<Attempt> attempt_at(const Tcp::endpoint& endpoint) const;
  [[nodiscard]] bool has_answer() const;
  void ask_hint();
  void ask_aside();
  void on_aside_answer(const GreetingAnswer& answer);
  [[nodiscard]] bool is_hinted(const Attempt& attempt) const { return hint_ && attempt.endpoint == *hint_; }
  void connect(const std::shared_ptr<Attempt>& attempt);
  void greet(const std::shared_ptr<Attempt>& attempt);
  void on_attempt_line(const std::shared_ptr<Attempt>& attempt, const std::string& line);
  void on_attempt_closed(const std::shared_ptr<Attempt>& attempt, const std::string& why);
  void on_said(const CoordinatorMessage& message);
  void settle(const std::shared_ptr<Attempt>& attempt);
  void end_round();
  void fail_round(const std::string& problem);
  static void drop(Attempt& attempt);
  void drop_attempts();
  void drop_aside();
  void drop_chosen();
  // `action` after `timeout`, unless another step of seeking has come first.
  void after(std::chrono::milliseconds timeout, Action action) { after(timer_, timeout, action); }
  void after(boost::asio::steady_timer& timer, std::chrono::milliseconds timeout, Action action);
  void on_resolve_timeout();

  boost::asio::io_context& loop_;
  CoordinatorAddress address_;
  Greet greet_;
  Handlers handlers_;
  Resolve resolve_;
  Tcp::resolver resolver_;
  boost::asio::steady_timer timer_;
  boost::asio::steady_timer hint_timer_;
  Stage stage_ = Stage::kIdle;
  uint64_t round_ = 0;  // callbacks of an earlier round are stale
  std::chrono::milliseconds backoff_{0};
  std::string name_problem_;  // of this round: the name leads nowhere
  std::vector<std::shared_ptr<Attempt>> attempts_;
  std::shared_ptr<Attempt> chosen_;
  std::optional<Tcp::endpoint> hint_;
  // A Welcome there ends the round. Until somebody better is known, or who answers there will not have us.
  bool hint_decides_ = false;
  int hint_refusals_ = 0;  // of our Join
  std::chrono::milliseconds hint_backoff_{0};
  std::shared_ptr<Attempt> aside_;  // asked while connected elsewhere
  int aside_tries_ = 0;
  bool joined_ = false;   // something was said on the chosen connection
  bool refused_ = false;  // … and the answer was no
};

}  // namespace lockstep
