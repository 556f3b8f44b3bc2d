#include "runner/agent/rank_files.h"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "runner/base/mutex.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

// Open files of the writing thread; when there are more, all are closed and opened again as needed.
constexpr size_t kOpenFilesMax = 512;

std::string left_out_line(int64_t count) {
  if (count == 0) return {};
  return "lockstep: " + std::to_string(count) + " lines were left out here: the disk was slower than the program\n";
}

}  // namespace

Result<std::string> RankFiles::make_folder(const std::string& log_dir, const std::string& run_id) {
  std::error_code error;
  const fs::path base = log_dir.empty() ? fs::temp_directory_path(error) : fs::path(log_dir);
  if (error) return Error{ErrorCode::kUnavailable, "no folder for temporary files (TMPDIR): " + error.message()};
  if (fs::exists(base, error) && !fs::is_directory(base, error)) {
    return invalid("--log_dir " + base.string() + " is a file, expected a folder");
  }
  fs::create_directories(base, error);
  if (error) return Error{ErrorCode::kInvalid, "--log_dir " + base.string() + " cannot be made: " + error.message()};
  std::string name = run_id;
  for (char& c : name) {
    if (c == '/') c = '_';
  }
  std::string folder =
      fs::absolute(base, error).string() + "/" + (log_dir.empty() ? "lockstep_" : "") + name + "_XXXXXX";
  if (::mkdtemp(folder.data()) == nullptr) {
    return invalid("--log_dir " + base.string() + ": no folder can be made in it: " + std::strerror(errno));
  }
  return folder;
}

RankFiles::RankFiles(FileSystem& fs, std::string folder, OnProblem on_problem)
    : fs_(fs), folder_(std::move(folder)), on_problem_(std::move(on_problem)), thread_([this] { write_all(); }) {}

RankFiles::~RankFiles() {
  {
    const MutexLock lock(mutex_);
    ends_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

Status RankFiles::begin_attempt(int attempt, int nproc) {
  attempt_folder_ = folder_ + "/attempt_" + std::to_string(attempt);
  std::error_code error;
  fs::remove_all(attempt_folder_, error);
  for (int local_rank = 0; local_rank < nproc && !error; ++local_rank) {
    fs::create_directories(attempt_folder_ + "/" + std::to_string(local_rank), error);
  }
  {
    const MutexLock lock(mutex_);
    has_new_folders_ = true;
  }
  if (!error) return {};
  return Error{ErrorCode::kUnavailable, attempt_folder_ + " cannot be made: " + error.message()};
}

std::string RankFiles::error_file(int local_rank) const {
  return attempt_folder_ + "/" + std::to_string(local_rank) + "/error.json";
}

void RankFiles::write(int local_rank, bool to_stderr, std::string_view line) {
  add(attempt_folder_ + "/" + std::to_string(local_rank) + (to_stderr ? "/stderr.log" : "/stdout.log"), line);
}

void RankFiles::write_filtered(bool to_stderr, std::string_view line) {
  add(attempt_folder_ + (to_stderr ? "/filtered_stderr.log" : "/filtered_stdout.log"), line);
}

void RankFiles::add(const std::string& path, std::string_view line) {
  {
    const MutexLock lock(mutex_);
    Unwritten& file = unwritten_[path];
    if (unwritten_bytes_ + line.size() > kUnwrittenBytesMax) {
      ++file.left_out;
      return;
    }
    const size_t before = file.bytes.size();
    file.bytes += left_out_line(std::exchange(file.left_out, 0));
    file.bytes.append(line).push_back('\n');
    unwritten_bytes_ += file.bytes.size() - before;
  }
  wake_.notify_one();
}

void RankFiles::flush(std::chrono::milliseconds patience) {
  MutexLock lock(mutex_);
  written_.wait_for(lock, patience, [this]() REQUIRES(mutex_) { return unwritten_.empty() && !is_writing_; });
}

void RankFiles::write_all() {
  MutexLock lock(mutex_);
  while (true) {
    wake_.wait(lock, [this]() REQUIRES(mutex_) { return ends_ || !unwritten_.empty(); });
    if (unwritten_.empty()) break;
    const std::map<std::string, Unwritten> files = std::exchange(unwritten_, {});
    is_writing_ = true;
    const bool reopens = std::exchange(has_new_folders_, false);
    lock.unlock();
    if (reopens) open_files_.clear();
    for (const auto& [path, file] : files) {
      report(append(path, file.bytes + left_out_line(file.left_out)));
    }
    lock.lock();
    for (const auto& [path, file] : files) unwritten_bytes_ -= file.bytes.size();
    is_writing_ = false;
    if (unwritten_.empty()) written_.notify_all();
  }
  open_files_.clear();
}

Status RankFiles::append(const std::string& path, std::string_view bytes) {
  auto file = open_files_.find(path);
  if (file == open_files_.end()) {
    if (open_files_.size() >= kOpenFilesMax) open_files_.clear();
    TRY_ASSIGN(AppendFile opened, AppendFile::open(fs_, path, FileSystem::Append::kToEither));
    file = open_files_.emplace(path, std::move(opened)).first;
  }
  return file->second.append(bytes);
}

void RankFiles::report(const Status& written) {
  if (written.ok() || std::exchange(has_reported_, true)) return;
  {
    const MutexLock lock(mutex_);
    problem_ = "the output of the ranks is not written to its files: " + written.error().message +
               ". The program goes on; what is printed while this lasts is missing there";
  }
  on_problem_();
}

std::string RankFiles::new_problem() {
  const MutexLock lock(mutex_);
  return std::exchange(problem_, {});
}

}  // namespace lockstep
