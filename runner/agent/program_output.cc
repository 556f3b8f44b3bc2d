#include "runner/agent/program_output.h"

#include <boost/asio/post.hpp>
#include <utility>

namespace lockstep {
namespace {

// Of each rank whose output is not shown, after a rank has failed.
constexpr size_t kLastLinesShown = 10;

}  // namespace

ProgramOutput::ProgramOutput(boost::asio::io_context& loop, FileSystem& fs, OutputOptions options,
                             const std::string& log_folder, int nproc, Handlers handlers)
    : loop_(loop), options_(std::move(options)), handlers_(std::move(handlers)), ranks_(static_cast<size_t>(nproc)) {
  if (log_folder.empty()) return;
  files_ =
      std::make_unique<RankFiles>(fs, log_folder, [this] { boost::asio::post(loop_, [this] { note_problem(); }); });
}

void ProgramOutput::note_problem() {
  if (const std::string problem = files_->new_problem(); !problem.empty()) handlers_.on_note("warning: " + problem);
}

void ProgramOutput::begin_start(int restarts) {
  has_told_last_lines_ = false;
  if (!files_) return;
  const Status made = files_->begin_attempt(restarts, static_cast<int>(ranks_.size()));
  if (!made.ok()) handlers_.on_note("warning: the output of the ranks is not written: " + made.error().message);
}

std::string ProgramOutput::error_file(int local_rank) const { return files_ ? files_->error_file(local_rank) : ""; }

void ProgramOutput::take(int local_rank, int stdout_fd, int stderr_fd) {
  at(local_rank) = {.out = relay(local_rank, stdout_fd, false), .err = relay(local_rank, stderr_fd, true)};
}

std::shared_ptr<OutputRelay> ProgramOutput::relay(int local_rank, int fd, bool to_stderr) {
  auto made = std::make_shared<OutputRelay>(
      loop_, fd, [this, local_rank, to_stderr](const std::string& line) { on_line(local_rank, to_stderr, line); },
      [this, local_rank, to_stderr](const std::string& text) {
        if (options_.is_shown(local_rank, to_stderr)) handlers_.on_unfinished(local_rank, to_stderr, text);
      });
  made->start();
  return made;
}

void ProgramOutput::on_line(int local_rank, bool to_stderr, const std::string& line) {
  if (to_stderr) at(local_rank).last_lines.add(line);
  if (files_ && options_.goes_to_file(local_rank, to_stderr)) {
    files_->write(local_rank, to_stderr, line);
    if (options_.is_duplicated(local_rank, to_stderr, line)) files_->write_filtered(to_stderr, line);
  }
  if (options_.is_shown(local_rank, to_stderr)) handlers_.on_line(local_rank, to_stderr, line);
}

void ProgramOutput::finish(int local_rank) {
  Rank& rank = at(local_rank);
  if (rank.out) rank.out->finish();
  if (rank.err) rank.err->finish();
}

std::string ProgramOutput::reason(int local_rank) const { return at(local_rank).last_lines.reason(); }

void ProgramOutput::show_last_lines(int first_rank) {
  if (std::exchange(has_told_last_lines_, true)) return;
  for (int local_rank = 0; local_rank < std::ssize(ranks_); ++local_rank) {
    const std::vector<std::string> lines = at(local_rank).last_lines.newest(kLastLinesShown);
    if (lines.empty() || options_.is_shown(local_rank, /*to_stderr=*/true)) continue;
    handlers_.on_note("the last lines of rank " + std::to_string(first_rank + local_rank) + ":");
    for (const std::string& line : lines) handlers_.on_note("  " + line);
  }
}

void ProgramOutput::flush(std::chrono::milliseconds patience) {
  if (!files_) return;
  files_->flush(patience);
  note_problem();  // the event loop has ended
}

}  // namespace lockstep
