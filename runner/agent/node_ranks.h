// NodeRanks: the processes of this node's ranks, as the agent sees them, whatever program they run.
//
// Role: carries out what the NodeMachine (recovery/node_machine.h) decides: starts, signals, kills and reaps the
// processes, and tells the handlers what happened. NodeWorkers is the one whose ranks are lockstep-worker and speak the
// messages of contract/messages.h themselves; ProgramRanks is the one for programs that know nothing of Lockstep, and
// says for them what a worker would say. Threads: the event loop's only.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "runner/agent/beat_page_mapping.h"
#include "runner/agent/run_history.h"
#include "runner/base/result.h"
#include "runner/contract/messages.h"

namespace lockstep {

struct WorkerEnd {
  int local_rank = 0;
  pid_t pid = 0;
  int code = 0;            // as in contract/exit_code; 13 for a kill by the kernel for memory
  std::string last_words;  // why it failed, in its own words
  bool killed_by_us = false;
};

class NodeRanks {
 public:
  struct Handlers {
    std::function<void(int local_rank, const WorkerMessage&)> on_message;
    std::function<void(const WorkerEnd&)> on_end;
    std::function<void(int local_rank, bool to_stderr, const std::string& line)> on_line;
    // What the last line shows that has not ended (a progress bar); empty: none.
    std::function<void(int local_rank, bool to_stderr, const std::string& text)> on_unfinished;
    std::function<void(const std::string& line)> on_note;  // for the agent's stderr
    // A program that knows nothing of Lockstep has made progress that a restart does not lose; at which step.
    std::function<void(int64_t step)> on_progress;
    // What a program says of a step, for the page's curves.
    std::function<void(StepFigures)> on_figures;
  };

  NodeRanks() = default;
  NodeRanks(const NodeRanks&) = delete;
  NodeRanks& operator=(const NodeRanks&) = delete;
  virtual ~NodeRanks() = default;

  // Starts this local rank, which must not be running. A Hello follows.
  virtual Status start(int local_rank) = 0;
  // Reaps all processes that have ended; as PID 1 of a pod also inherited orphans.
  virtual void reap() = 0;

  virtual void send(int local_rank, const AgentMessage& message) = 0;
  // A reply to a request that an earlier process of this local rank made is dropped.
  virtual void answer_store(int local_rank, const StoreReply& reply) = 0;
  virtual void signal_all(int signal) = 0;
  // From now on a request to stop is this signal and not SIGTERM, for programs that know nothing of Lockstep.
  virtual void stop_with(int /*signal*/) {}
  // Prints the kernel's view of the process's threads and asks it to print its stack. A later kill() waits for that.
  virtual void dump_stacks(int local_rank, int rank) = 0;
  virtual void kill(int local_rank) = 0;
  virtual void kill_all() = 0;
  // At the agent's end: writes what waits to be written, for at most this long.
  virtual void flush(std::chrono::milliseconds /*patience*/) {}

  [[nodiscard]] virtual bool is_alive(int local_rank) const = 0;
  [[nodiscard]] virtual pid_t pid(int local_rank) const = 0;
  [[nodiscard]] virtual int count_alive() const = 0;
  // The beat page of the process that runs or ran last; nullopt before the first one.
  [[nodiscard]] virtual std::optional<BeatSnapshot> beats(int local_rank) const = 0;
};

}  // namespace lockstep
