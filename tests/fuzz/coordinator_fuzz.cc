// Any conversation with the coordinator: what several connections say, in any order, with any pauses, never breaks a
// rule of recovery/coordinator.h or of the store behind it.
//
// A line of the input: "2 {…}" is said on the second connection (a new one when it was closed), "x2" ends it, "t500"
// lets 500 ms pass. Seeds: conversations that place, break and end groups.
#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <set>
#include <string>
#include <string_view>

#include "runner/recovery/coordinator.h"
#include "runner/recovery/store.h"

namespace {

using namespace lockstep;

constexpr size_t kLinesMax = 200;
constexpr int64_t kPauseMax = 1'000'000;  // ms
constexpr int kOurProtocol = 0;           // in a greeting: that of this build, so that the seeds do not age

#define MUST(condition)                                                          \
  do {                                                                           \
    if (!(condition)) {                                                          \
      std::fprintf(stderr, "line %d: %s does not hold\n", __LINE__, #condition); \
      std::abort();                                                              \
    }                                                                            \
  } while (false)

CoordinatorOptions options() {
  CoordinatorOptions o;
  o.job = "job";
  o.token = "secret";
  o.attempt = 7;
  o.min_nodes = 1;
  o.max_nodes = 3;
  o.wanted_nodes = 2;
  return o;
}

class Conversation {
 public:
  void hear(std::string_view line) {
    if (line.size() < 2) return;
    const char first = line.front();
    if (first >= '1' && first <= '5') return say(first, line.substr(2));
    if (first == 'x') return hang_up(line[1]);
    if (first == 't') pause(line.substr(1));
  }

 private:
  void say(char slot, std::string_view text) {
    ConnectionId& connection = connections_[slot];
    if (!open_.contains(connection)) open_.insert(connection = ++last_connection_);
    Result<NodeMessage> message = decode_node_message(text);
    // The server closes whoever makes no sense, and whoever does not greet first (agent/coordinator_server).
    const bool is_greeting = message.ok() && std::holds_alternative<Greet>(*message);
    if (!message.ok() || is_greeting == greeted_.contains(connection)) return hang_up(slot);
    greeted_.insert(connection);
    if (is_greeting) {
      int& protocol = std::get<Greet>(*message).protocol;
      if (protocol == kOurProtocol) protocol = kCoordinationProtocol;
    }
    feed(NodeSent{connection, *message});
  }

  void hang_up(char slot) {
    const ConnectionId connection = connections_[slot];
    if (open_.erase(connection) == 0) return;
    store_.forget_connection(connection);
    feed(ConnectionEnded{connection, "it left"});
  }

  void pause(std::string_view text) {
    int64_t ms = 0;
    std::from_chars(text.data(), text.data() + text.size(), ms);
    now_ += std::chrono::milliseconds(std::min(std::max<int64_t>(ms, 0), kPauseMax));
    take(store_.expire(now_));
    MUST(!store_.next_deadline() || *store_.next_deadline() > now_);
    feed(CoordinatorTick{});
  }

  void feed(const CoordinatorEvent& event) {
    const uint64_t generation = state_.generation();
    for (const CoordinatorOutput& output : step(state_, event, now_)) {
      std::visit([this](const auto& o) { check(o); }, output);
    }
    MUST(state_.generation() >= generation);
    check_counts();
  }

  // What was closed by the coordinator in this very step has been forgotten by both.
  void check(const Send& send) {
    MUST(open_.contains(send.connection));
    MUST(decode_coordinator_message(encode(send.message)).ok());
    const auto* const placement = std::get_if<Assignment>(&send.message);
    if (placement == nullptr) return;
    MUST(placement->generation == state_.generation() && placement->generation >= begun_);
    MUST(placement->rank >= 0 && placement->rank < placement->world_size);
  }
  void check(const Close& close) {
    store_.forget_connection(close.connection);
    open_.erase(close.connection);
  }
  void check(const BeginGeneration& begin) {
    MUST(begin.generation > begun_);
    begun_ = begin.generation;
    take(store_.begin_generation(begin.generation));
  }
  void check(const AskStore& ask) {
    MUST(open_.contains(ask.connection) && ask.request.generation == begun_);
    MUST(ask.local_rank >= 0 && ask.local_rank < kNprocMax);
    take(store_.apply({ask.connection, ask.local_rank}, ask.request, now_));
  }
  void check(const GroupNews&) {}
  void check(const Note& note) { MUST(note.text.find_first_of("\n\r\x1b") == std::string::npos); }

  void take(const std::vector<StoreAnswer>& answers) const {
    for (const StoreAnswer& answer : answers) MUST(open_.contains(answer.client.connection));
  }

  void check_counts() const {
    int connected = 0;
    int ready = 0;
    for (const auto& [rank, node] : state_.nodes) {
      MUST(rank >= 0 && rank < state_.options.max_nodes);
      if (node.connection == 0) continue;
      MUST(open_.contains(node.connection) && state_.rank_of.at(node.connection) == rank);
      ++connected;
      ready += node.ready && node.leaving_code == 0 ? 1 : 0;
    }
    MUST(connected == state_.tally.connected && ready == state_.tally.ready);
    MUST(state_.rank_of.size() == static_cast<size_t>(connected));
    for (const auto& [connection, greeting] : state_.greetings) MUST(open_.contains(connection));
  }

  CoordinatorState state_{options()};
  KeyValueStore store_;
  TimePoint now_{std::chrono::hours(1)};
  std::map<char, ConnectionId> connections_;
  std::set<ConnectionId> open_;
  std::set<ConnectionId> greeted_;
  ConnectionId last_connection_ = 0;
  uint64_t begun_ = 0;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view text(reinterpret_cast<const char*>(data), size);
  Conversation conversation;
  for (size_t lines = 0; lines < kLinesMax && !text.empty(); ++lines) {
    const size_t end = std::min(text.find('\n'), text.size());
    conversation.hear(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return 0;
}
