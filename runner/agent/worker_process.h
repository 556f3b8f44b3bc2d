// Starting one worker, and what the kernel says of its end.
//
// Role: fork and exec with the ends of the link and of the output pipes and the beat page in place. A worker is in its
// own process group (a Ctrl-C of the terminal reaches the agent alone) and dies with the agent, whatever kills that
// one. Threads: spawn_worker must be called from a thread that lives as long as the agent: the kernel ties
// PR_SET_PDEATHSIG to the thread, not the process.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runner/base/result.h"
#include "runner/contract/world.h"

namespace lockstep {

struct WorkerCommand {
  std::string program;                 // path
  std::vector<std::string> arguments;  // without the program's name
  Environment environment;             // whole; LOCAL_RANK, the variables of link and beats and,
                                       // unless waiting is set already, OMP_WAIT_POLICY are added
};

// The agent's ends; owned by the caller.
struct SpawnedWorker {
  pid_t pid = 0;
  int link_fd = -1;    // stream socket
  int stdout_fd = -1;  // read end, non-blocking
  int stderr_fd = -1;  // read end, non-blocking
};

// `beat_fd`: of the worker's beat page; stays the caller's. kUnavailable: no pipe, no process; kNotFound: the program
// cannot be run (names it and why).
Result<SpawnedWorker> spawn_worker(const WorkerCommand& command, int local_rank, int beat_fd);

// Kills by the kernel that are told so long after the count rose belong together.
inline constexpr std::chrono::seconds kOomKillsTogether{1};

// Which of the processes that ended by SIGKILL the kernel has killed for memory in our cgroup: as many as it says.
class OomKillCounter {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  // `path`: memory.events (cgroup v2) or memory.oom_control (v1); a file that is missing counts as none.
  explicit OomKillCounter(std::string path) : path_(std::move(path)), seen_(read()), taken_(seen_) {}

  // One has ended by SIGKILL: true for as many as the count has risen by. What nobody takes within kOomKillsTogether
  // was not one of ours.
  bool take_one(TimePoint now);

  // The file of our own cgroup; empty when there is none.
  static std::string path_of_own_cgroup();

 private:
  [[nodiscard]] int64_t read() const;

  std::string path_;
  int64_t seen_;  // the count
  TimePoint seen_at_{};
  int64_t taken_;  // of it
};

}  // namespace lockstep
