// ProgramFolder: a folder for the files that the ranks of the user's program share with their agent: torch's error
// files, the token of the progress server, what a Python rank runs before the program (sitecustomize.py), and the
// package `lockstep`, for images that have none.
//
// It lies in TMPDIR (or /tmp), or in /dev/shm where that cannot be written, as with a read-only root file system; only
// this user can read it; the destructor removes it. Threads: the caller's.
#pragma once

#include <string>

#include "runner/base/file_system.h"
#include "runner/base/result.h"

namespace lockstep {

class ProgramFolder {
 public:
  // kUnavailable: neither place can be written; the message names both.
  static Result<ProgramFolder> make(FileSystem& files);
  ~ProgramFolder();
  ProgramFolder(ProgramFolder&& other) noexcept;
  ProgramFolder& operator=(ProgramFolder&& other) noexcept;

  [[nodiscard]] const std::string& path() const { return path_; }
  // For TORCHELASTIC_ERROR_FILE.
  [[nodiscard]] std::string error_file(int local_rank) const;
  // For the beginning of PYTHONPATH: it holds sitecustomize.py.
  [[nodiscard]] std::string start_folder() const { return path_ + "/start"; }
  // For the end of sys.path: it holds the package.
  [[nodiscard]] std::string package_folder() const { return path_ + "/last"; }

 private:
  explicit ProgramFolder(std::string path) : path_(std::move(path)) {}

  std::string path_;  // empty: moved from
};

}  // namespace lockstep
