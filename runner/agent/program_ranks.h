// ProgramRanks: the ranks of a run of the user's own program (`lockstep launch`).
//
// Role: says to the agent what a worker would say, for a program that knows nothing of Lockstep. A rank without a
// process waits for its placement (Hello). A placement starts the program of all ranks of the node, with torchrun's
// variables, by a fork of the zygote where the program is Python and by exec otherwise. A group that ends (Cut,
// LeaveTogether) ends the programs, because a program cannot go on in another group; when its process is gone the rank
// waits again (Left). Ranks that end with 0 wait until the ranks of all nodes have, so that one that fails later still
// restarts all. An exit code of the program has no meaning of ours: each bad end is a crash, and an end after we have
// asked for it is a stop.
//
// A program that uses the package `lockstep` says hello on its link, and gets its assignment there. Once it has said
// that it outlives its group (Outlives), it speaks for itself: its process stays when the group ends, says Left, and
// waits for its next assignment. Only a rank that has died is started again, with the placement of the next group, and
// the others wait for it while they form that group. One that asks to be replaced (Replace) is ended and started again
// in the same way.
//
// The nodes agree through the group's store: node 0 says where rank 0's store listens (kMasterKey), and each rank that
// ends with 0 says so (kEndedKey).
// Threads: the event loop's only; start() and send() must be called from it, too (worker_process.h).
#pragma once

#include <sys/types.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "runner/agent/beat_page_mapping.h"
#include "runner/agent/kept_progress.h"
#include "runner/agent/line_socket.h"
#include "runner/agent/node_ranks.h"
#include "runner/agent/program_command.h"
#include "runner/agent/program_folder.h"
#include "runner/agent/program_output.h"
#include "runner/agent/progress_server.h"
#include "runner/agent/worker_process.h"
#include "runner/agent/zygote.h"

namespace lockstep {

// A program whose group has ended gets SIGTERM, and SIGKILL this much later. Without a handler of its own it ends at
// once; one that saves a last checkpoint cannot, because its peers are gone.
inline constexpr std::chrono::seconds kProgramCutGrace{1};

// The ids of our own store requests are above this, those of the ranks below.
inline constexpr uint64_t kOwnRequests = uint64_t{1} << 62U;

class ProgramRanks final : public NodeRanks {
 public:
  // `fs` outlives it.
  ProgramRanks(boost::asio::io_context& loop, FileSystem& fs, ProgramCommand command, std::string oom_kill_path,
               int nproc, Handlers handlers);
  ~ProgramRanks() override;

  Status start(int local_rank) override;
  void reap() override;
  void send(int local_rank, const AgentMessage& message) override;
  void answer_store(int local_rank, const StoreReply& reply) override;
  void signal_all(int signal) override;
  void stop_with(int signal) override { stop_signal_ = signal; }
  void dump_stacks(int local_rank, int rank) override;
  void kill(int local_rank) override;
  void kill_all() override;
  void flush(std::chrono::milliseconds patience) override { output_.flush(patience); }
  [[nodiscard]] bool is_alive(int local_rank) const override { return at(local_rank).state != State::kNone; }
  [[nodiscard]] pid_t pid(int local_rank) const override { return at(local_rank).pid; }
  [[nodiscard]] int count_alive() const override;
  [[nodiscard]] std::optional<BeatSnapshot> beats(int local_rank) const override;

 private:
  enum class State {
    kNone,      // not started, or ended
    kAwaiting,  // no process: waits for a placement, or for the address of rank 0's store
    kForking,   // the zygote was asked for a process
    kRunning,
    kFinished,  // its process has ended with 0; it waits for the others
  };
  struct Rank {
    State state = State::kNone;
    pid_t pid = 0;
    std::optional<Assignment> assignment;
    std::optional<BeatPageMapping> page;
    int64_t first_step = -1;          // that was seen in this process; -1: none
    int64_t first_step_ns = 0;        // when that was
    bool has_progressed = false;      // said: it has made steps for long
    bool killed_by_us = false;        // its end is a bad one that we caused: it hung
    bool has_printed_stacks = false;  // or is about to, as it was asked to
    bool is_cut = false;              // its group has ended: when its process is gone it waits again
    const char* left_as = "";         // how it says so: kLeftCut, kLeftRegroup or kLeftReplaced
    std::string left_because;
    std::shared_ptr<LineSocket> link;        // to its process
    std::optional<pid_t> program_pid;        // of who has said Hello: its process, or what a script has started
    bool outlives = false;                   // it has said Outlives, and speaks for itself
    bool leaves_together = false;            // as it said there
    std::set<uint64_t> open_requests;        // its own, of the store
    std::string last_words;                  // why it failed, where it, or we, say so
    std::vector<MetricFamily> own_families;  // as it said them last
    std::string error_file;                  // TORCHELASTIC_ERROR_FILE of its process
    int stop_code = 0;                       // 130 or 143: asked to stop
    std::optional<int> wait_status;          // its process has ended; what it has started may not have
    int64_t ended_ns = 0;                    // when that was
    int pending_signal = 0;                  // to be sent when the zygote has said its pid
    std::unique_ptr<boost::asio::steady_timer> kill_timer;
  };

  [[nodiscard]] const Rank& at(int local_rank) const { return ranks_[static_cast<size_t>(local_rank)]; }
  Rank& at(int local_rank) { return ranks_[static_cast<size_t>(local_rank)]; }
  [[nodiscard]] int nproc() const { return static_cast<int>(ranks_.size()); }

  // From the event loop, after what runs now: the agent must not be called back from within its own call.
  void report(int local_rank, WorkerMessage message);
  void report_end(WorkerEnd end);
  void ask_store(StoreOp op, std::vector<std::string> keys, std::vector<std::string> values);

  void on_assignment(int local_rank, const Assignment& assignment);
  void seek_master();
  void on_master(const std::string& text);
  void start_programs();
  Status fork_programs(const std::vector<int>& local_ranks);
  Status exec_program(int local_rank);
  Result<Zygote*> zygote(const PythonCommand& python);
  void on_forked(const std::vector<pid_t>& pids);
  void on_zygote_end(const std::string& why);
  void start_instead_of_fork(int local_rank);
  // A new rank in the place of this one, with a page of its own and what the earlier one's memory holds.
  Status begin_anew(Rank& rank);
  void fail_to_start(int local_rank, const Error& error);

  void adopt_link(int local_rank, int fd);
  void close_link(Rank& rank);
  void on_link_line(int local_rank, const std::string& line);
  void on_worker_message(int local_rank, const WorkerMessage& message);
  void on_hello(int local_rank, const Hello& hello);
  void refuse(int local_rank, std::string why);

  void end_for_group(int local_rank, const char* left_as, std::chrono::milliseconds grace);
  void end_process(int local_rank, int signal);
  void kill_later(int local_rank, std::chrono::milliseconds grace);
  void on_process_end(int local_rank, int wait_status);
  void end_when_alone(int local_rank);
  [[nodiscard]] bool failed_after_another(int local_rank) const;
  void on_program_end(int local_rank, int wait_status);
  void leave(int local_rank);
  void on_all_finished();
  void schedule_step_poll();
  void poll_step();
  void on_first_step(int64_t step, int64_t committed_ns);
  void open_progress_server();
  void on_report(const ProgressReport& report);
  void send_figures(const ProgressReport& report);
  void send_progress();
  void send_metrics(const std::optional<Progress>& progress);
  [[nodiscard]] Progress progress_now() const;
  [[nodiscard]] std::string error_file(int local_rank) const;
  [[nodiscard]] Environment environment_of(int local_rank);
  [[nodiscard]] std::string reason_of(int local_rank) const;

  boost::asio::io_context& loop_;
  FileSystem& fs_;
  ProgramCommand command_;
  OomKillCounter oom_kills_;
  Handlers handlers_;
  ProgramOutput output_;
  KeptProgress kept_progress_;
  std::vector<Rank> ranks_;              // by local rank
  std::optional<MasterAddress> master_;  // of the newest placement
  uint64_t generation_ = 0;              // of the newest placement
  uint64_t next_request_ = kOwnRequests;
  std::optional<uint64_t> master_request_;    // open: asks for the address
  std::optional<uint64_t> finished_request_;  // open: waits for the ends of all ranks
  std::shared_ptr<Zygote> zygote_;
  bool zygote_failed_ = false;                            // it is not tried again
  bool has_said_version_ = false;                         // that the package has another one
  std::deque<std::vector<int>> fork_requests_;            // local ranks of the requests that are not answered
  std::map<pid_t, int> unknown_ends_;                     // wait status of children that no rank is known to be, yet
  int64_t formed_ns_ = 0;                                 // when the programs of the newest placement were started
  int stop_signal_ = SIGTERM;                             // asks the ranks to stop
  std::optional<ProgramFolder> folder_;                   // none where no folder can be written
  std::unique_ptr<ProgressServer> progress_server_;       // null without a folder
  std::optional<ProgressReport> reported_;                // by rank 0's newest process, all its reports together
  int64_t reported_ns_ = 0;                               // when the newest report came
  int64_t steps_before_ = 0;                              // that rank 0 reports and its page does not count
  std::deque<std::pair<int64_t, int64_t>> recent_steps_;  // of rank 0: step and when it was committed, for the rate
  boost::asio::steady_timer step_timer_;
};

}  // namespace lockstep
