// ProgramOutput: the output of the ranks of a user's program: relayed line by line, written to files, and the last
// lines kept for the reason of an end.
//
// Role: owns the pipes of all ranks of the node, and their files (rank_files.h). What goes where is OutputOptions.
// Threads: the event loop's only.
#pragma once

#include <boost/asio/io_context.hpp>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runner/agent/output_relay.h"
#include "runner/agent/program_command.h"
#include "runner/agent/rank_files.h"
#include "runner/agent/rank_output.h"

namespace lockstep {

class ProgramOutput {
 public:
  struct Handlers {
    std::function<void(int local_rank, bool to_stderr, const std::string& line)> on_line;        // is to be shown
    std::function<void(int local_rank, bool to_stderr, const std::string& text)> on_unfinished;  // as in NodeRanks
    std::function<void(const std::string& line)> on_note;
  };

  // `log_folder`: of RankFiles; empty: no files are written. `fs` outlives it.
  ProgramOutput(boost::asio::io_context& loop, FileSystem& fs, OutputOptions options, const std::string& log_folder,
                int nproc, Handlers handlers);

  // The ranks are about to be started, after `restarts` earlier starts.
  void begin_start(int restarts);
  // Where torch's error file of a rank belongs among the files; empty when there are none.
  [[nodiscard]] std::string error_file(int local_rank) const;
  // Takes the read ends of a process's pipes.
  void take(int local_rank, int stdout_fd, int stderr_fd);
  // Its process has ended: relays what is in the pipes, and closes them.
  void finish(int local_rank);
  // Why the newest process of this rank failed, by what it said to stderr; empty when it said nothing.
  [[nodiscard]] std::string reason(int local_rank) const;
  // The last lines of the ranks whose stderr is not shown; once for each start. `first_rank`: of local rank 0.
  void show_last_lines(int first_rank);
  void flush(std::chrono::milliseconds patience);

 private:
  struct Rank {
    std::shared_ptr<OutputRelay> out;
    std::shared_ptr<OutputRelay> err;
    LastLines last_lines;
  };

  [[nodiscard]] const Rank& at(int local_rank) const { return ranks_[static_cast<size_t>(local_rank)]; }
  Rank& at(int local_rank) { return ranks_[static_cast<size_t>(local_rank)]; }
  std::shared_ptr<OutputRelay> relay(int local_rank, int fd, bool to_stderr);
  void note_problem();
  void on_line(int local_rank, bool to_stderr, const std::string& line);

  boost::asio::io_context& loop_;
  OutputOptions options_;
  Handlers handlers_;
  std::vector<Rank> ranks_;           // by local rank
  std::unique_ptr<RankFiles> files_;  // null: none are written
  bool has_told_last_lines_ = false;  // of this start
};

}  // namespace lockstep
