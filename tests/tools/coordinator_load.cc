// A coordinator under the connections of a big job: coordinator_load NODES WORKERS one_key|pairs|at_once
//
// A real CoordinatorServer on its own thread; NODES agents, as far as the coordinator can tell them from real ones, on
// another, over loopback. They join with their terms, are placed, and their workers ask the store for all that a
// forming asks: they meet (dist/rendezvous), then their group's backend asks: one_key as NCCL does (rank 0 sets its id,
// all others get it), pairs as Gloo does (each rank sets its address and asks for each other one in turn), at_once as
// Gloo does when the agent has switched it to the store's extended calls. Prints one JSON object: seconds of each part,
// and the store's requests.
#include <sys/resource.h>

#include <algorithm>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "runner/agent/coordinator_server.h"
#include "runner/recovery/shared_gets.h"

namespace lockstep {
namespace {

namespace asio = boost::asio;
using Tcp = asio::ip::tcp;
using Clock = std::chrono::steady_clock;

constexpr const char* kToken = "secret";
constexpr std::chrono::milliseconds kStoreTimeout{300'000};
constexpr int kKeysAtOnce = 128;       // Gloo's
constexpr size_t kIdBytes = 128;       // NCCL's
constexpr size_t kAddressBytes = 154;  // Gloo's, to which it adds 8 for each rank unless a rank is its sequence number

constexpr size_t kTermsBytes = 2000;  // of the flags, about

enum class Asks { kOneKey, kPairs, kAtOnce };

struct Load {
  int nodes = 0;
  int workers = 0;
  Asks asks = Asks::kOneKey;
  [[nodiscard]] int ranks() const { return nodes * workers; }
};

// Of all agents together.
struct Progress {
  int welcomed = 0;
  int placed = 0;
  int ranks_done = 0;
  int64_t requests = 0;
};

std::string key_of(int rank) { return "0/" + std::to_string(rank); }

// The requests of a rank, in their order.
enum Request { kSetHere, kCount, kSetAllHere, kWaitForAll, kFirstOfBackend };

class SimulatedNode {
 public:
  SimulatedNode(asio::io_context& loop, const Load& load, int rank, Progress& progress)
      : loop_(loop), load_(load), rank_(rank), progress_(progress) {}

  void connect(int port) {
    Tcp::socket socket(loop_);
    socket.connect({asio::ip::address_v4::loopback(), static_cast<uint16_t>(port)});
    prepare_tcp(socket);
    socket_ = std::make_shared<LineSocket>(
        loop_, LineSocket::Socket(std::move(socket)),
        LineSocket::Limits{.line_bytes_max = kCoordinationLineBytesMax, .queue_bytes_max = kCoordinationQueueBytesMax});
    socket_->start({.on_line = [this](const std::string& line) { on_line(line); },
                    .on_closed =
                        [this](const std::string& why) {
                          std::fprintf(stderr, "node %d: %s\n", rank_, why.c_str());
                          std::exit(1);
                        }});
    Greet greet;
    greet.job = "load";
    greet.token = kToken;
    greet.node_rank = rank_;
    greet.incarnation = static_cast<uint64_t>(rank_) + 1;
    say(greet);
  }
  void join() {
    say(Join{.nproc = load_.workers, .ready = true, .terms = "{\"flags\":\"" + std::string(kTermsBytes, 'f') + "\"}"});
  }
  void close() { socket_->close(); }

  // The first request of each worker; each next one follows the answer to the one before.
  void begin() {
    next_.assign(static_cast<size_t>(load_.workers), kSetHere);
    for (int local = 0; local < load_.workers; ++local) ask_next(local);
  }

 private:
  void say(const NodeMessage& message) { socket_->send(encode(message)); }

  [[nodiscard]] size_t bytes_of_value() const {
    switch (load_.asks) {
      case Asks::kOneKey:
        return kIdBytes;
      case Asks::kPairs:
        return kAddressBytes + 8 * static_cast<size_t>(load_.ranks());
      case Asks::kAtOnce:
        return kAddressBytes;
    }
    return 0;
  }
  void ask_next(int local_rank) {
    std::optional<StoreRequest> request =
        request_of(first_rank_ + local_rank, next_[static_cast<size_t>(local_rank)]++);
    if (!request) {
      ++progress_.ranks_done;
      return;
    }
    // As an agent does.
    if (gets_.joins(local_rank, *request)) return;
    ++progress_.requests;
    say(StoreCall{.local_rank = local_rank, .request = std::move(*request)});
  }

  // nullopt: the rank's group has formed.
  [[nodiscard]] std::optional<StoreRequest> request_of(int rank, int number) const {
    switch (number) {
      case kSetHere:
        return set("here/" + std::to_string(rank), "1");
      case kCount: {
        StoreRequest request = ask(StoreOp::kAdd, {"here"});
        request.amount = 1;
        return request;
      }
      case kSetAllHere:
        return set("all-here", "1");
      case kWaitForAll:
        return ask(StoreOp::kWait, {"all-here"});
      default:
        return request_of_backend(rank, number - kFirstOfBackend);
    }
  }
  [[nodiscard]] std::optional<StoreRequest> request_of_backend(int rank, int number) const {
    const bool has_value = load_.asks != Asks::kOneKey || rank == 0;
    if (number == 0 && has_value) return set(key_of(rank), std::string(bytes_of_value(), 'a'));
    const int count = has_value ? number - 1 : number;  // of those that ask for the others' values
    switch (load_.asks) {
      case Asks::kOneKey:
        if (rank == 0 || count > 0) return std::nullopt;
        return ask(StoreOp::kGet, {key_of(0)});
      case Asks::kPairs:
        if (count == 2 * load_.ranks()) return std::nullopt;
        return ask(count % 2 == 0 ? StoreOp::kWait : StoreOp::kGet, {key_of(count / 2)});
      case Asks::kAtOnce: {
        std::vector<std::string> keys;
        for (int of = count * kKeysAtOnce; of < std::min((count + 1) * kKeysAtOnce, load_.ranks()); ++of) {
          keys.push_back(key_of(of));
        }
        if (keys.empty()) return std::nullopt;
        return ask(StoreOp::kGet, std::move(keys));
      }
    }
    return std::nullopt;
  }
  [[nodiscard]] StoreRequest ask(StoreOp op, std::vector<std::string> keys) const {
    StoreRequest request;
    request.generation = generation_;
    request.op = op;
    request.keys = std::move(keys);
    request.timeout = kStoreTimeout;
    return request;
  }
  [[nodiscard]] StoreRequest set(const std::string& key, const std::string& value) const {
    StoreRequest request = ask(StoreOp::kSet, {key});
    request.values = {value};
    return request;
  }

  // Real nodes read the values on their own machines. Here one thread is all of them, so it cuts the values out of an
  // answer unread, after it has looked how many they are.
  [[nodiscard]] std::string without_values(const std::string& line) const {
    constexpr std::string_view kValues = "\"values\":[";
    const size_t begin = line.find(kValues);
    if (begin == std::string::npos) return line;
    const size_t first = begin + kValues.size();
    const size_t end = line.rfind(']');
    const auto count = std::count(line.begin() + static_cast<std::ptrdiff_t>(first),
                                  line.begin() + static_cast<std::ptrdiff_t>(end), ',') +
                       1;
    const auto bytes = static_cast<int64_t>(end - first);
    if (count > 1 && bytes < count * 2 * static_cast<int64_t>(bytes_of_value())) {
      std::fprintf(stderr, "node %d: %lld values in %lld bytes\n", rank_, static_cast<long long>(count),
                   static_cast<long long>(bytes));
      std::exit(1);
    }
    return line.substr(0, first) + line.substr(end);
  }

  void on_line(const std::string& line) {
    const Result<CoordinatorMessage> message = decode_coordinator_message(without_values(line));
    if (!message.ok()) {
      std::fprintf(stderr, "node %d: %s\n", rank_, message.error().message.c_str());
      std::exit(1);
    }
    if (std::holds_alternative<Welcome>(*message)) ++progress_.welcomed;
    if (const auto* const placement = std::get_if<Assignment>(&*message)) {
      generation_ = placement->generation;
      first_rank_ = placement->rank;
      ++progress_.placed;
    }
    if (const auto* const answer = std::get_if<StoreAnswerTo>(&*message)) on_answer(*answer);
  }

  void on_answer(const StoreAnswerTo& answer) {
    if (answer.reply.status != StoreStatus::kOk) {
      std::fprintf(stderr, "rank %d: %s\n", first_rank_ + answer.local_rank, answer.reply.message.c_str());
      std::exit(1);
    }
    // Only the last rank to come says that all are here.
    int& next = next_[static_cast<size_t>(answer.local_rank)];
    if (next == kSetAllHere && answer.reply.number < load_.ranks()) ++next;
    const auto others = gets_.pop_others({.local_rank = answer.local_rank, .id = answer.reply.id});
    ask_next(answer.local_rank);
    for (const SharedGets::Asked& other : others) ask_next(other.local_rank);
  }

  asio::io_context& loop_;
  const Load& load_;
  int rank_;
  Progress& progress_;
  std::shared_ptr<LineSocket> socket_;
  uint64_t generation_ = 0;
  int first_rank_ = 0;
  std::vector<int> next_;  // request, of each worker
  SharedGets gets_;
};

void allow_many_files() {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

int run(const Load& load) {
  allow_many_files();
  CoordinatorOptions options;
  options.job = "load";
  options.token = kToken;
  options.attempt = 1;
  options.min_nodes = options.max_nodes = options.wanted_nodes = load.nodes;
  options.heartbeat_timeout = std::chrono::minutes(10);  // the nodes do not beat
  asio::io_context server_loop;
  CoordinatorServer server(server_loop, options, {.on_note = [](const Note&) {}, .on_news = [](const GroupNews&) {}});
  if (const Status listening = server.listen(0); !listening.ok()) {
    std::fprintf(stderr, "%s\n", listening.error().message.c_str());
    return 1;
  }
  const int port = server.port();
  std::thread server_thread([&] { server_loop.run(); });

  asio::io_context loop;
  const auto stays = asio::make_work_guard(loop);
  Progress progress;
  std::vector<std::unique_ptr<SimulatedNode>> nodes;
  const auto run_until = [&loop](const int& count, int wanted) {
    while (count < wanted) loop.run_one();
  };
  const auto seconds_since = [](Clock::time_point begin) {
    return std::chrono::duration<double>(Clock::now() - begin).count();
  };

  // One after the other, as strangers beyond a number are turned out.
  const auto begin_greet = Clock::now();
  for (int rank = 0; rank < load.nodes; ++rank) {
    nodes.push_back(std::make_unique<SimulatedNode>(loop, load, rank, progress));
    nodes.back()->connect(port);
    run_until(progress.welcomed, rank + 1);
  }
  const double greet_seconds = seconds_since(begin_greet);

  const auto begin_join = Clock::now();
  for (const auto& node : nodes) node->join();
  run_until(progress.placed, load.nodes);
  const double place_seconds = seconds_since(begin_join);

  const auto begin_store = Clock::now();
  for (const auto& node : nodes) node->begin();
  run_until(progress.ranks_done, load.ranks());
  const double store_seconds = seconds_since(begin_store);

  std::printf(
      "{\"nodes\": %d, \"workers\": %d, \"greet_seconds\": %.4f, \"place_seconds\": %.4f, "
      "\"store_seconds\": %.4f, \"requests\": %lld}\n",
      load.nodes, load.workers, greet_seconds, place_seconds, store_seconds, static_cast<long long>(progress.requests));
  for (const auto& node : nodes) node->close();
  server_loop.stop();
  server_thread.join();
  return 0;
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  using namespace lockstep;
  Load load;
  const std::string asks = argc == 4 ? argv[3] : "";
  if (argc == 4) {
    load.nodes = std::atoi(argv[1]);
    load.workers = std::atoi(argv[2]);
  }
  if (load.nodes < 1 || load.workers < 1 || (asks != "one_key" && asks != "pairs" && asks != "at_once")) {
    std::fprintf(stderr, "usage: coordinator_load NODES WORKERS one_key|pairs|at_once\n");
    return 2;
  }
  load.asks = asks == "pairs" ? Asks::kPairs : asks == "at_once" ? Asks::kAtOnce : Asks::kOneKey;
  return run(load);
}
