#include "runner/data/structures/prepare_structures.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <map>
#include <mutex>
#include <optional>
#include <random>
#include <thread>
#include <utility>

#include "runner/base/atomic_file.h"
#include "runner/base/cgroup.h"
#include "runner/base/sha256.h"
#include "runner/data/structures/generated_structures.h"

namespace lockstep {
namespace {

// A source is cut into about this many parts, each of at least one piece and at most kPartPieces: enough that all cores
// have work and that little is lost when a preparation is killed, few enough that a file for each is no burden.
constexpr int64_t kParts = 64;
constexpr int64_t kPartPieces = 256;
constexpr auto kProgressInterval = std::chrono::milliseconds(100);
constexpr size_t kReasonsShown = 3;
constexpr size_t kFingerprintDigits = 16;

int64_t pieces_of_part(int64_t pieces) { return std::clamp<int64_t>((pieces + kParts - 1) / kParts, 1, kPartPieces); }

std::string part_name(int64_t part) {
  std::array<char, 32> name = {};
  std::snprintf(name.data(), name.size(), "part-%06lld", static_cast<long long>(part));
  return name.data();
}

// A word that no other process uses for its temporary files, on this machine or another.
std::string unique_tag() {
  std::random_device random;
  std::array<char, 40> tag = {};
  std::snprintf(tag.data(), tag.size(), "%d-%08x%08x", static_cast<int>(::getpid()), random(), random());
  return tag.data();
}

Error cannot_write(const Error& error, const std::string& folder) {
  if (error.code == ErrorCode::kCancelled) return error;
  return Error{ErrorCode::kUnavailable, "cannot write the cache of structures in " + folder + ": " + error.message +
                                            "; make room or give write access there, or name another folder with "
                                            "--cache_dir"};
}

// One preparation: its threads take parts in turn and leave each as a cache of its own, in a file or in memory.
class Preparation {
 public:
  Preparation(FileSystem& fs, const StructureSource& source, std::string path, const PrepareOptions& options)
      : fs_(fs),
        source_(source),
        path_(std::move(path)),
        parts_folder_(path_ + ".parts"),
        options_(options),
        part_pieces_(pieces_of_part(source.size())),
        parts_((static_cast<size_t>(source.size() + part_pieces_ - 1)) / static_cast<size_t>(part_pieces_)) {}

  Result<StructureCache> run() {
    if (!path_.empty()) {
      const Status made = make_directories(fs_, parts_folder_);
      if (!made.ok()) return cannot_write(made.error(), parent_path(path_));
    }
    TRY(read_parts());
    return join_parts();
  }

 private:
  [[nodiscard]] bool in_memory() const { return path_.empty(); }
  [[nodiscard]] std::string part_path(size_t part) const {
    return join_path(parts_folder_, part_name(static_cast<int64_t>(part)));
  }

  // Returns when all parts are there, or with the first error.
  Status read_parts() {
    const int wanted = options_.threads > 0 ? options_.threads : usable_cores();
    const size_t count = std::min<size_t>(static_cast<size_t>(wanted), parts_.size());
    // Not all processes at the same end: of two that prepare the same source, each does about half.
    first_ = in_memory() ? 0 : std::hash<std::string>()(tag_) % parts_.size();
    running_ = count;
    std::vector<std::jthread> threads;
    for (size_t i = 0; i < count; ++i) threads.emplace_back([this] { work(); });
    std::unique_lock lock(mutex_);
    while (running_ > 0) {
      changed_.wait_for(lock, kProgressInterval);
      const int64_t done = pieces_done_;
      lock.unlock();
      const bool goes_on = options_.progress(done, source_.size());
      lock.lock();
      if (!goes_on && !error_) {
        error_ =
            Error{ErrorCode::kCancelled, in_memory() ? std::string("stopped while structures were read")
                                                     : "stopped while structures were read; what is read is kept in " +
                                                           parts_folder_ + ", and the next start goes on there"};
      }
    }
    if (error_) return *error_;
    return {};
  }

  void work() {
    for (;;) {
      const size_t taken = next_++;
      if (taken >= parts_.size()) break;
      const size_t part = (first_ + taken) % parts_.size();
      const Status status = stopped() ? Status() : do_part(part);
      if (status.ok()) continue;
      const std::lock_guard lock(mutex_);
      if (!error_) error_ = status.error();
    }
    const std::lock_guard lock(mutex_);
    --running_;
    changed_.notify_one();
  }

  bool stopped() {
    const std::lock_guard lock(mutex_);
    return error_.has_value();
  }

  int64_t begin_of(size_t part) const { return static_cast<int64_t>(part) * part_pieces_; }
  int64_t end_of(size_t part) const { return std::min(begin_of(part) + part_pieces_, source_.size()); }

  void count_pieces(int64_t pieces) {
    const std::lock_guard lock(mutex_);
    pieces_done_ += pieces;
  }

  Status do_part(size_t part) {
    if (!in_memory()) {
      Result<StructureCache> there = StructureCache::open(part_path(part));
      if (there.ok()) {  // of an earlier preparation, or of another process
        parts_[part] = std::move(*there);
        count_pieces(end_of(part) - begin_of(part));
        return {};
      }
    }
    std::vector<Structure> structures;
    std::vector<SkippedFile> skipped;
    for (int64_t i = begin_of(part); i < end_of(part); ++i) {
      if (stopped()) return {};
      Result<std::vector<Structure>> read = source_.read(i);
      if (read.ok()) {
        std::move(read->begin(), read->end(), std::back_inserter(structures));
      } else if (read.error().code == ErrorCode::kUnavailable) {
        // The volume, not the file: what is left out now would be left out for good.
        return Error{ErrorCode::kUnavailable,
                     source_.name(i) + ": " + read.error().message +
                         "; mend the volume or the file's permissions and start again: what is "
                         "read already is kept"};
      } else {
        skipped.push_back({source_.name(i), read.error().message});
      }
      count_pieces(1);
    }
    auto bytes = std::make_shared<const std::string>(structure_cache_bytes(structures, skipped));
    if (in_memory()) {
      TRY_ASSIGN(parts_[part], StructureCache::from_bytes(std::move(bytes), "memory"));
      return {};
    }
    const Status written = write_file_atomically(fs_, part_path(part), *bytes, tag_);
    if (!written.ok()) return cannot_write(written.error(), parent_path(path_));
    TRY_ASSIGN(parts_[part], StructureCache::open(part_path(part)));
    return {};
  }

  Result<StructureCache> join_parts() {
    std::vector<const StructureCache*> parts;
    int64_t structures = 0;
    for (const std::optional<StructureCache>& part : parts_) {
      parts.push_back(&*part);
      structures += part->size();
    }
    if (structures == 0) return nothing_read(parts);
    if (in_memory()) {
      std::string bytes;
      TRY(write_structure_cache(parts, [&](const void* data, size_t count) {
        bytes.append(static_cast<const char*>(data), count);
        return Status();
      }));
      return StructureCache::from_bytes(std::make_shared<const std::string>(std::move(bytes)), "memory");
    }
    const Status written = write_file_atomically(
        fs_, path_, [&](const ByteSink& sink) { return write_structure_cache(parts, sink); }, tag_);
    if (!written.ok()) return cannot_write(written.error(), parent_path(path_));
    return StructureCache::open(path_);
  }

  Error nothing_read(const std::vector<const StructureCache*>& parts) const {
    std::string reasons;
    size_t count = 0;
    for (const StructureCache* part : parts) {
      for (const SkippedFile& file : part->skipped()) {
        if (count++ < kReasonsShown) reasons += "\n  " + file.file + ": " + file.reason;
      }
    }
    if (count > kReasonsShown) reasons += "\n  and " + std::to_string(count - kReasonsShown) + " more";
    return Error{ErrorCode::kInvalid, "none of " + source_.summary() + " could be read:" + reasons};
  }

  FileSystem& fs_;
  const StructureSource& source_;
  std::string path_;  // of the cache; empty: in memory
  std::string parts_folder_;
  const PrepareOptions& options_;
  std::string tag_ = unique_tag();
  int64_t part_pieces_;
  size_t first_ = 0;
  std::atomic<size_t> next_ = 0;
  std::vector<std::optional<StructureCache>> parts_;  // each written by the thread that took it

  std::mutex mutex_;
  std::condition_variable changed_;
  size_t running_ = 0;  // guarded by mutex_, as what follows
  int64_t pieces_done_ = 0;
  std::optional<Error> error_;
};

}  // namespace

Result<PreparedStructures> prepare_structures(FileSystem& fs, const std::string& path, const std::string& cache_folder,
                                              const PrepareOptions& options) {
  TRY_ASSIGN(const std::unique_ptr<StructureSource> source,
             find_structures(fs, path, [&] { static_cast<void>(options.progress(0, 0)); }));
  // What is generated is made again faster than a cache is read.
  const bool is_generated = parse_generated_structures(path)->has_value();
  return prepare_structures(fs, *source, is_generated ? "" : cache_folder, options);
}

Result<PreparedStructures> prepare_structures(FileSystem& fs, const StructureSource& source,
                                              const std::string& cache_folder, const PrepareOptions& options) {
  PreparedStructures prepared;
  prepared.summary = source.summary();
  if (!cache_folder.empty()) {
    const std::string fingerprint =
        sha256_hex("structures " + std::to_string(kStructureCacheVersion) + "\n" + source.fingerprint());
    prepared.path = join_path(cache_folder, "structures-" + fingerprint.substr(0, kFingerprintDigits) + ".cache");
    Result<StructureCache> there = StructureCache::open(prepared.path);
    if (there.ok()) {
      prepared.cache = std::move(*there);
      prepared.was_there = true;
      return prepared;
    }
    // What is there and damaged is made again and replaced.
  }
  Preparation preparation(fs, source, prepared.path, options);
  Result<StructureCache> made = preparation.run();
  if (!made.ok()) {
    if (prepared.path.empty() || made.error().code == ErrorCode::kCancelled) return made.error();
    // Another process that finished first has removed the parts that this one was writing.
    Result<StructureCache> of_another = StructureCache::open(prepared.path);
    if (!of_another.ok()) return made.error();
    made = std::move(of_another);
  }
  prepared.cache = std::move(*made);
  if (!prepared.path.empty()) {
    // Left behind, it would only take room.
    static_cast<void>(remove_tree(fs, prepared.path + ".parts"));
  }
  return prepared;
}

}  // namespace lockstep
