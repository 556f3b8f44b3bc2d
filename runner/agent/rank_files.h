// RankFiles: the files that hold the output of a program's ranks, laid out as torchrun's:
//
//   FOLDER/attempt_0/LOCAL_RANK/{stdout.log,stderr.log,error.json}, FOLDER/attempt_0/filtered_{stdout,stderr}.log
//
// Role: takes lines and writes them on a thread of its own, because a slow volume must not hold up the agent's
// heartbeats. Lines wait in memory, up to kUnwrittenBytesMax; more are left out, and a line in the file says how many.
// A file that cannot be written (a full disk) is reported once; training goes on, and later lines are tried again.
// Threads: every function from one thread; `on_problem` is called from the writing thread, when new_problem() has one.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <thread>

#include "runner/base/append_file.h"
#include "runner/base/mutex.h"
#include "runner/base/result.h"

namespace lockstep {

inline constexpr size_t kUnwrittenBytesMax = size_t{8} << 20;

class RankFiles {
 public:
  using OnProblem = std::function<void()>;

  // Makes LOG_DIR/RUN_ID_XXXXXX, and LOG_DIR if it is missing. Empty log_dir: below TMPDIR. kInvalid, kUnavailable name
  // the folder.
  static Result<std::string> make_folder(const std::string& log_dir, const std::string& run_id);

  // `fs` outlives it.
  RankFiles(FileSystem& fs, std::string folder, OnProblem on_problem);
  // Waits until everything is written.
  ~RankFiles();
  RankFiles(const RankFiles&) = delete;
  RankFiles& operator=(const RankFiles&) = delete;

  // Makes the folders of a start of the ranks, and removes what an earlier one of the same number has left.
  Status begin_attempt(int attempt, int nproc);
  [[nodiscard]] std::string error_file(int local_rank) const;
  void write(int local_rank, bool to_stderr, std::string_view line);
  // Into the file of filtered lines of all ranks.
  void write_filtered(bool to_stderr, std::string_view line);
  // Why files cannot be written, once; empty: nothing new.
  std::string new_problem();
  // Waits until everything is written, for at most this long.
  void flush(std::chrono::milliseconds patience);

 private:
  struct Unwritten {
    std::string bytes;
    int64_t left_out = 0;  // lines
  };
  void add(const std::string& path, std::string_view line);
  void write_all();
  Status append(const std::string& path, std::string_view bytes);
  void report(const Status& written);

  FileSystem& fs_;
  std::string folder_;
  std::string attempt_folder_;
  OnProblem on_problem_;
  Mutex mutex_;
  ConditionVariable wake_;
  ConditionVariable written_;
  std::map<std::string, Unwritten> unwritten_ GUARDED_BY(mutex_);  // by path
  size_t unwritten_bytes_ GUARDED_BY(mutex_) = 0;
  bool is_writing_ GUARDED_BY(mutex_) = false;
  bool has_new_folders_ GUARDED_BY(mutex_) = false;  // files that are open may be removed ones
  bool ends_ GUARDED_BY(mutex_) = false;
  std::string problem_ GUARDED_BY(mutex_);
  // Of the writing thread.
  std::map<std::string, AppendFile> open_files_;  // by path
  bool has_reported_ = false;
  std::thread thread_;
};

}  // namespace lockstep
