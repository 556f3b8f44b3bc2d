// Starts one worker process, and finds out whether the kernel's OOM killer ended it.
//
// Role: fork and exec, with the worker's ends of the link and of the output pipes, and its beat page, as open
// descriptors. A worker is in its own process group, so a Ctrl-C in the terminal reaches only the agent; and it is
// killed when the agent dies for whatever reason (PR_SET_PDEATHSIG). Threads: spawn_worker must be called from a thread
// that lives as long as the agent, because the kernel ties PR_SET_PDEATHSIG to the thread, not to the process.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runner/base/clock.h"
#include "runner/base/environment.h"
#include "runner/base/result.h"

namespace lockstep {

struct WorkerCommand {
  std::string program;                 // path
  std::vector<std::string> arguments;  // without the program's name
  Environment environment;             // complete; spawn_worker removes LOCKSTEP_TOKEN, and adds LOCAL_RANK, the
                                       // variables of link and beat page, and GOMP_SPINCOUNT unless the user has set
                                       // how OpenMP threads wait
};

// The agent's ends of link and pipes; the caller owns the descriptors.
struct SpawnedWorker {
  pid_t pid = 0;
  int link_fd = -1;    // stream socket; -1: none
  int stdout_fd = -1;  // read end, non-blocking
  int stderr_fd = -1;  // read end, non-blocking
};

// `beat_fd`: of the worker's beat page; the caller keeps it. kUnavailable: no pipe or process can be made; kNotFound:
// the program cannot be run (names it and why).
Result<SpawnedWorker> spawn_worker(const WorkerCommand& command, int local_rank, int beat_fd);

struct ProgramEnds {
  bool has_link = false;
  // It gets this process's stdin, stdout and stderr, of a terminal whose foreground it becomes; there are no pipes
  // then. Give the foreground back with reclaim_foreground.
  bool has_terminal = false;
};
// Starts a program of the user's. `words`: the program's path and its arguments. `environment` is complete, but for
// the variables of link and beat page, which are added, and LOCKSTEP_TOKEN, which is removed. Errors as above.
Result<SpawnedWorker> spawn_program(const std::vector<std::string>& words, Environment environment, int beat_fd,
                                    ProgramEnds ends);
// True when stdin and stdout are a terminal that this process may read.
bool is_in_foreground();
// Makes this process's group the foreground of its terminal again.
void reclaim_foreground();

// Deaths within this time after a rise of the kernel's oom_kill count are attributed to that rise.
inline constexpr std::chrono::seconds kOomKillsTogether{1};

// Attributes workers that ended by SIGKILL to the kernel's OOM killer: as many as the oom_kill count of our cgroup
// says.
class OomKillCounter {
 public:
  // `path`: memory.events (cgroup v2) or memory.oom_control (v1); a file that is missing counts as none.
  explicit OomKillCounter(std::string path) : path_(std::move(path)), seen_(read()), taken_(seen_) {}

  // To be called when a worker has ended by SIGKILL. True if the kernel killed it for memory: the count has risen by
  // more than the calls that have returned true. A rise that no call uses within kOomKillsTogether was another process.
  bool claim_kill(TimePoint now);

  // The file of our own cgroup; empty when there is none.
  static std::string path_of_own_cgroup();

 private:
  [[nodiscard]] int64_t read() const;

  std::string path_;
  int64_t seen_;  // the kernel's count when it was read last
  TimePoint seen_at_{};
  int64_t taken_;  // how many of seen_ were attributed to workers
};

}  // namespace lockstep
