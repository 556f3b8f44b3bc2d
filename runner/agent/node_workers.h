// NodeWorkers: the ranks of a run of Lockstep's own models: lockstep-worker processes, their links, output and beat
// pages. Threads: the event loop's only; start() must be called from it, too (worker_process.h).
#pragma once

#include <sys/types.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "runner/agent/beat_page_mapping.h"
#include "runner/agent/line_socket.h"
#include "runner/agent/node_ranks.h"
#include "runner/agent/output_relay.h"
#include "runner/agent/worker_process.h"
#include "runner/recovery/shared_gets.h"

namespace lockstep {

// A hung worker is killed when it has printed its stack, or after this time.
inline constexpr std::chrono::seconds kStackTime{3};

class NodeWorkers final : public NodeRanks {
 public:
  NodeWorkers(boost::asio::io_context& loop, WorkerCommand command, std::string oom_kill_path, int nproc,
              Handlers handlers);

  Status start(int local_rank) override;
  void reap() override;
  void send(int local_rank, const AgentMessage& message) override;
  // Also answers other workers that have asked for the same keys meanwhile.
  void answer_store(int local_rank, const StoreReply& reply) override;
  void signal_all(int signal) override;
  // The signal that asks for the stack is SIGUSR1.
  void dump_stacks(int local_rank, int rank) override;
  void kill(int local_rank) override;
  void kill_all() override;
  [[nodiscard]] bool is_alive(int local_rank) const override {
    return at(local_rank) != nullptr && at(local_rank)->alive;
  }
  [[nodiscard]] pid_t pid(int local_rank) const override { return at(local_rank) == nullptr ? 0 : at(local_rank)->pid; }
  [[nodiscard]] int count_alive() const override;
  [[nodiscard]] std::optional<BeatSnapshot> beats(int local_rank) const override;

 private:
  struct Worker {
    int local_rank = 0;
    pid_t pid = 0;
    bool alive = true;
    std::shared_ptr<LineSocket> link;
    std::shared_ptr<OutputRelay> out;
    std::shared_ptr<OutputRelay> err;
    BeatPageMapping beats;
    bool killed_by_us = false;
    std::string last_words;
    std::set<uint64_t> open_requests;                                // of the store
    std::optional<std::chrono::steady_clock::time_point> dumped_at;  // asked for its stack, which has not come yet
    std::unique_ptr<boost::asio::steady_timer> kill_timer;
  };

  [[nodiscard]] Worker* at(int local_rank) const { return workers_[static_cast<size_t>(local_rank)].get(); }
  void on_line(Worker& worker, const std::string& line);
  void refuse(Worker& worker, std::string why);
  void on_end(Worker& worker, int wait_status);
  void on_stack_end(int local_rank);
  void kill_now(Worker& worker);
  std::shared_ptr<OutputRelay> relay(int fd, int local_rank, bool to_stderr);

  boost::asio::io_context& loop_;
  WorkerCommand command_;
  OomKillCounter oom_kills_;
  Handlers handlers_;
  std::vector<std::unique_ptr<Worker>> workers_;  // by local rank
  SharedGets shared_gets_;
};

}  // namespace lockstep
