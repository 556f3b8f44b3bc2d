// Zygote: a parked Python process that has imported torch and what the program imported the last time, and forks ranks
// within a tenth of a second (python/zygote.py).
//
// Role: starts it, sends requests, and passes its answers on. A zygote is started with the ranks' environment, because
// libraries read theirs when they are imported; it lives as long as this object. The forked ranks are children of this
// process, which must be a subreaper (PR_SET_CHILD_SUBREAPER) and waits for them; they are killed when it ends.
// Threads: the event loop's only, and a thread that lives as long as the agent (worker_process.h).
#pragma once

#include <sys/types.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runner/agent/output_relay.h"
#include "runner/agent/program_command.h"
#include "runner/base/environment.h"
#include "runner/base/json.h"
#include "runner/base/result.h"

namespace lockstep {

struct ZygoteCommand {
  std::string python;                // path
  std::vector<std::string> options;  // Python's own, before the script: "-u", "-X", "dev"
  Environment environment;           // of the ranks, without what differs between them
  std::vector<std::string> program;  // a script and its arguments, or "-m", a module and its arguments
  std::string memory;                // file that keeps what is known of the program, as what it imports
  std::string package_folder;        // of the package lockstep, for images without one; empty: there is none
  std::string start_folder;          // of sitecustomize.py, for a rank that cannot be forked; empty: there is none
  int spares = 0;                    // processes that are forked ahead
};

// For this program: what does not depend on the agent that starts it. `memory` is empty where the home folder is not
// known.
ZygoteCommand zygote_command(const ProgramCommand& command, const PythonCommand& python, int nproc);

// Starts one that says what it would do, as zygote.py's `describe` has it, and waits for that: a few seconds.
// kUnavailable, kNotFound: as spawn_program; the interpreter has ended without saying it.
Result<Json> describe_zygote(const ZygoteCommand& command);

// The kernel passes at most 253 descriptors with one packet: the request's, and four for each rank.
inline constexpr size_t kRanksPerRequest = 63;

// One rank: its environment and the descriptors that it gets; the caller keeps its copies of them.
struct ForkedRank {
  Environment environment;
  int stdout_fd = -1;
  int stderr_fd = -1;
  int beat_fd = -1;
  int link_fd = -1;
};

class Zygote : public std::enable_shared_from_this<Zygote> {
 public:
  struct Handlers {
    // Of the ranks of the oldest request that is not answered, in its order.
    std::function<void(const std::vector<pid_t>&)> on_forked;
    // It has ended, or it cannot fork; why. Nothing is answered after that.
    std::function<void(const std::string& why)> on_end;
    std::function<void(const std::string& line)> on_line;  // what it prints
  };

  // kUnavailable, kNotFound: as spawn_worker.
  static Result<std::shared_ptr<Zygote>> start(boost::asio::io_context& loop, const ZygoteCommand& command,
                                               Handlers handlers);
  ~Zygote();
  Zygote(const Zygote&) = delete;
  Zygote& operator=(const Zygote&) = delete;

  [[nodiscard]] pid_t pid() const { return pid_; }
  // It has imported everything and waits for requests.
  [[nodiscard]] bool is_ready() const { return is_ready_; }
  // Forks the ranks, each of which becomes the program. At most kRanksPerRequest ranks. Requests before it is ready are
  // answered then.
  Status fork(const std::vector<ForkedRank>& ranks);
  // No handler is called any more.
  void close();

 private:
  Zygote(boost::asio::io_context& loop, int socket_fd, pid_t pid, std::vector<std::string> program, Handlers handlers);
  void wait_for_answer();
  bool read_answer();

  boost::asio::posix::stream_descriptor socket_;
  pid_t pid_;
  std::vector<std::string> program_;
  Handlers handlers_;
  std::shared_ptr<OutputRelay> out_;
  std::shared_ptr<OutputRelay> err_;
  bool is_ready_ = false;
};

}  // namespace lockstep
