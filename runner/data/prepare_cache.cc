#include "runner/data/prepare_cache.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <thread>

#include "runner/base/atomic_file.h"
#include "runner/base/cgroup.h"
#include "runner/base/mutex.h"
#include "runner/base/random_hex.h"
#include "runner/base/sha256.h"
#include "runner/data/generated_name.h"

namespace lockstep {
namespace {

// A source is divided into about this many chunks, each of at least one piece and at most kChunkPieces: enough that all
// cores have work and that little is lost when a preparation is killed, few enough to have a file for each.
constexpr int64_t kChunks = 64;
constexpr int64_t kChunkPieces = 256;
constexpr size_t kReasonsShown = 3;
constexpr size_t kFingerprintDigits = 16;
constexpr auto kProgressInterval = std::chrono::milliseconds(100);

int threads_of(const PrepareOptions& options) { return options.threads > 0 ? options.threads : usable_cores(); }

int64_t pieces_of_chunk(int64_t pieces) {
  return std::clamp<int64_t>((pieces + kChunks - 1) / kChunks, 1, kChunkPieces);
}

std::string chunks_folder(const std::string& cache_path) {
  return join_path(parent_path(cache_path), "." + base_name(cache_path) + ".parts");
}

std::string chunk_name(size_t chunk) {
  std::array<char, 32> name = {};
  std::snprintf(name.data(), name.size(), "part-%06zu", chunk);
  return name.data();
}

std::string cache_path(const std::string& folder, const std::string& many, uint32_t version,
                       const std::string& fingerprint) {
  const std::string digest = sha256_hex(many + " " + std::to_string(version) + "\n" + fingerprint);
  return join_path(folder, many + "-" + digest.substr(0, kFingerprintDigits) + ".cache");
}

Error cannot_write_cache(const Error& error, const std::string& many, const std::string& folder,
                         const std::string& cache_flags) {
  if (error.code == ErrorCode::kCancelled) return error;
  return Error{ErrorCode::kUnavailable, "cannot write the cache of " + many + " in " + folder + ": " + error.message +
                                            "; make room or give write access there, or name another folder with " +
                                            cache_flags};
}

Error volume_failed(const Error& error, const std::string& piece) {
  return Error{ErrorCode::kUnavailable,
               piece + ": " + error.message +
                   "; repair the volume or the file's permissions and start again: what is read "
                   "already is kept"};
}

Error stopped_preparation(const std::string& many, const std::string& chunks_folder) {
  std::string message = "stopped while " + many + " were read";
  if (!chunks_folder.empty())
    message += "; what is read is kept in " + chunks_folder + ", and the next start continues from it";
  return Error{ErrorCode::kCancelled, message};
}

Error nothing_read(const std::string& summary, const std::vector<SkippedFile>& skipped) {
  std::string reasons;
  for (size_t i = 0; i < std::min(skipped.size(), kReasonsShown); ++i) {
    reasons += "\n  " + skipped[i].file + ": " + skipped[i].reason;
  }
  if (skipped.size() > kReasonsShown) reasons += "\n  and " + std::to_string(skipped.size() - kReasonsShown) + " more";
  if (skipped.empty()) return Error{ErrorCode::kInvalid, "there is nothing in " + summary};
  return Error{ErrorCode::kInvalid, "none of " + summary + " could be read:" + reasons};
}

// One preparation: its threads take one chunk after the other and make a cache of each, in a file or in memory.
class Preparation {
 public:
  // path: of the cache; empty: in memory.
  Preparation(FileSystem& fs, const PieceSource& source, const RecordKind& kind, std::string path,
              const PrepareOptions& options)
      : fs_(fs),
        source_(source),
        kind_(kind),
        pieces_(source.size()),
        path_(std::move(path)),
        chunks_folder_(path_.empty() ? "" : chunks_folder(path_)),
        options_(options),
        // One thread has no use for chunks in memory: they would be held twice when they are joined.
        chunk_pieces_(in_memory() && threads_of(options) == 1 ? pieces_ : pieces_of_chunk(pieces_)),
        chunks_((static_cast<size_t>(pieces_ + chunk_pieces_ - 1)) / static_cast<size_t>(chunk_pieces_)) {}

  Result<RecordCache> run() {
    if (!in_memory()) {
      const Status made = make_directories(fs_, chunks_folder_);
      if (!made.ok()) return cannot_write(made.error());
    }
    TRY(make_chunks());
    return join_chunks();
  }

 private:
  [[nodiscard]] bool in_memory() const { return path_.empty(); }
  [[nodiscard]] std::string chunk_path(size_t chunk) const { return join_path(chunks_folder_, chunk_name(chunk)); }
  // With this process's tag, because another process may write the same file.
  [[nodiscard]] std::string temporary_of(const std::string& path) const {
    return join_path(parent_path(path), ".tmp-" + tag_ + "-" + base_name(path));
  }
  [[nodiscard]] Error cannot_write(const Error& error) const {
    return cannot_write_cache(error, kind_.many, parent_path(path_), options_.cache_flags);
  }

  // Returns when all chunks exist, or with the first error.
  Status make_chunks() {
    const size_t count = std::min<size_t>(static_cast<size_t>(threads_of(options_)), chunks_.size());
    // Processes start at different chunks, so that of two that prepare the same source each does about half.
    first_ = in_memory() ? 0 : std::hash<std::string>()(tag_) % chunks_.size();
    std::vector<std::jthread> threads;
    MutexLock lock(mutex_);
    running_ = count;
    for (size_t i = 0; i < count; ++i) threads.emplace_back([this] { work(); });
    while (running_ > 0) {
      changed_.wait_for(lock, kProgressInterval);
      const int64_t done = pieces_done_;
      lock.unlock();
      const bool goes_on = options_.progress(done, pieces_);
      lock.lock();
      if (!goes_on && !error_) error_ = stopped_preparation(kind_.many, chunks_folder_);
    }
    if (error_) return *error_;
    return {};
  }

  void work() {
    for (;;) {
      const size_t taken = next_++;
      if (taken >= chunks_.size()) break;
      const size_t chunk = (first_ + taken) % chunks_.size();
      const Status status = stopped() ? Status() : make_chunk(chunk);
      if (status.ok()) continue;
      const MutexLock lock(mutex_);
      if (!error_) error_ = status.error();
    }
    const MutexLock lock(mutex_);
    --running_;
    changed_.notify_one();
  }

  bool stopped() {
    const MutexLock lock(mutex_);
    return error_.has_value();
  }

  [[nodiscard]] int64_t begin_of(size_t chunk) const { return static_cast<int64_t>(chunk) * chunk_pieces_; }
  [[nodiscard]] int64_t end_of(size_t chunk) const { return std::min(begin_of(chunk) + chunk_pieces_, pieces_); }

  void count_pieces(int64_t pieces) {
    const MutexLock lock(mutex_);
    pieces_done_ += pieces;
  }

  Status make_chunk(size_t chunk) {
    if (!in_memory()) {
      Result<RecordCache> there = RecordCache::open(fs_, chunk_path(chunk), kind_.format);
      if (there.ok()) {  // made by an earlier preparation or by another process
        chunks_[chunk] = std::move(*there);
        count_pieces(end_of(chunk) - begin_of(chunk));
        return {};
      }
    }
    RecordCacheWriter writer(kind_.format, end_of(chunk) - begin_of(chunk), kind_.record_bytes);
    std::vector<SkippedFile> skipped;
    std::vector<SkippedFile> remarks;
    for (int64_t i = begin_of(chunk); i < end_of(chunk); ++i) {
      if (stopped()) return {};
      const Result<std::vector<PieceRecord>> read = kind_.read(i);
      if (read.ok()) {
        for (const PieceRecord& record : *read) {
          writer.add(record.bytes, record.tag);
          remarks.insert(remarks.end(), record.remarks.begin(), record.remarks.end());
        }
      } else if (read.error().code == ErrorCode::kUnavailable || read.error().code == ErrorCode::kNotFound) {
        // The volume failed, or is no longer mounted, because the file was listed. Skipping the piece now would leave
        // it out of the cache for good.
        return volume_failed(read.error(), source_.name(i));
      } else {
        skipped.push_back({source_.name(i), read.error().message});
      }
      count_pieces(1);
    }
    auto bytes = std::make_shared<const std::string>(std::move(writer).finish(kind_.facts, skipped, remarks));
    if (in_memory()) {
      chunks_bytes_ += bytes->size();
      TRY_ASSIGN(chunks_[chunk], RecordCache::from_bytes(std::move(bytes), "memory", kind_.format));
      return {};
    }
    const Status written = write_file_atomically(fs_, chunk_path(chunk), *bytes, temporary_of(chunk_path(chunk)));
    if (!written.ok()) return cannot_write(written.error());
    TRY_ASSIGN(chunks_[chunk], RecordCache::open(fs_, chunk_path(chunk), kind_.format));
    return {};
  }

  Result<RecordCache> join_chunks() {
    std::vector<const RecordCache*> chunks;
    std::vector<SkippedFile> skipped;
    int64_t size = 0;
    for (const std::optional<RecordCache>& chunk : chunks_) {
      chunks.push_back(&*chunk);
      size += chunk->size();
      skipped.insert(skipped.end(), chunk->skipped().begin(), chunk->skipped().end());
    }
    if (size == 0) return nothing_read(source_.summary(), skipped);
    if (in_memory() && chunks_.size() == 1) return *std::move(chunks_[0]);
    if (in_memory()) {
      std::string bytes;
      bytes.reserve(chunks_bytes_);
      TRY(write_record_cache(kind_.format, chunks, [&](const void* data, size_t count) {
        bytes.append(static_cast<const char*>(data), count);
        return Status();
      }));
      return RecordCache::from_bytes(std::make_shared<const std::string>(std::move(bytes)), "memory", kind_.format);
    }
    const Status written = write_file_atomically(
        fs_, path_, [&](const ByteSink& sink) { return write_record_cache(kind_.format, chunks, sink); },
        temporary_of(path_));
    if (!written.ok()) return cannot_write(written.error());
    return RecordCache::open(fs_, path_, kind_.format);
  }

  FileSystem& fs_;
  const PieceSource& source_;
  const RecordKind& kind_;
  int64_t pieces_;
  std::string path_;
  std::string chunks_folder_;
  const PrepareOptions& options_;
  const std::string tag_ = random_hex(16);  // in the names of temporary files, which no other process uses
  int64_t chunk_pieces_;
  size_t first_ = 0;
  std::atomic<size_t> next_ = 0;
  std::vector<std::optional<RecordCache>> chunks_;  // each is set by the thread that took the chunk
  std::atomic<size_t> chunks_bytes_ = 0;            // of those in memory

  Mutex mutex_;
  ConditionVariable changed_;
  size_t running_ GUARDED_BY(mutex_) = 0;
  int64_t pieces_done_ GUARDED_BY(mutex_) = 0;
  std::optional<Error> error_ GUARDED_BY(mutex_);
};

}  // namespace

std::string cache_folder(const std::string& cache_dir, const std::string& data_path) {
  if (!cache_dir.empty() || is_generated(data_path)) return cache_dir;
  std::error_code ignored;
  const bool is_folder = std::filesystem::is_directory(data_path, ignored);
  return join_path(is_folder ? data_path : parent_path(data_path), ".lockstep");
}

Result<Prepared<RecordCache>> prepare_cache(FileSystem& fs, const PieceSource& source, const RecordKind& kind,
                                            const std::string& cache_folder, const PrepareOptions& options) {
  Prepared<RecordCache> prepared;
  prepared.summary = source.summary();
  prepared.remarks = source.remarks();
  if (!cache_folder.empty()) {
    prepared.path = cache_path(cache_folder, kind.many, kind.format.version, source.fingerprint());
    Result<RecordCache> there = RecordCache::open(fs, prepared.path, kind.format);
    if (there.ok()) {
      prepared.cache = std::move(*there);
      prepared.was_there = true;
      return prepared;
    }
    // A damaged cache is made again and replaced.
  }
  Preparation preparation(fs, source, kind, prepared.path, options);
  Result<RecordCache> made = preparation.run();
  if (!made.ok()) {
    if (prepared.path.empty() || made.error().code == ErrorCode::kCancelled) return made.error();
    // Another process that finished first has removed the chunks that this one was writing.
    Result<RecordCache> of_another = RecordCache::open(fs, prepared.path, kind.format);
    if (!of_another.ok()) return made.error();
    made = std::move(of_another);
  }
  prepared.cache = std::move(*made);
  if (!prepared.path.empty()) {
    // The chunks are not needed any more. An error here only leaves them on the disk.
    static_cast<void>(remove_tree(fs, chunks_folder(prepared.path)));
  }
  return prepared;
}

}  // namespace lockstep
