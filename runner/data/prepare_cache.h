// prepare_cache: reads a source once, on all cores, into one cache file (StructureCache, ImageCache).
//
// Role: makes `<cache_folder>/<many>-<fingerprint>.cache`, or opens it if it exists. The fingerprint in its name
// depends on the source's files and on the cache's version, so the cache of an unchanged source is opened at once.
// While it works, it writes parts of a few pieces each to `.….parts/`, so that a preparation that was killed continues
// from there. That name is hidden from listings (found_files.h): the source's folder may be cache_folder too, and
// another process may list it just when this one removes its parts. Files are written under temporary names, fsynced
// and renamed, so a file with its final name is complete.
// Several processes, on nodes that share a volume, may prepare the same source at the same time: they start at
// different parts and use the parts that others have finished. None waits for another, and all produce the same bytes.
//
// Threads: starts options.threads and joins them; everything else, including progress, happens on the calling thread.
//
// A Kind is a struct that describes what is prepared (prepare_structures.cc and prepare_images.cc have one each):
//   using Cache                                 open(fs, path), from_bytes(bytes, what), size(), skipped()
//   using Piece                                 what goes into the cache, one after the other
//   static constexpr uint32_t kVersion          of the cache's file
//   static constexpr const char* kMany          "structures": in the file's name and in messages
//   source                                      reference with summary(), remarks(), size(), name(i), fingerprint()
//                                               and read(i) → Result<std::vector<Piece>>, from any thread
//   writer(pieces) const                        for about that many: add(piece), finish(skipped) → a cache's bytes
//   write_cache(parts, sink) const              → Status: one cache of all parts
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "runner/base/atomic_file.h"
#include "runner/base/file_system.h"
#include "runner/base/mutex.h"
#include "runner/base/result.h"
#include "runner/data/cache_file.h"

namespace lockstep {

struct PrepareOptions {
  int threads = 0;  // 0: as many as usable_cores()
  // Called at least ten times a second with the pieces done and their total. When it returns false, the preparation
  // ends (kCancelled) after the pieces that are being read.
  std::function<bool(int64_t done, int64_t total)> progress = [](int64_t, int64_t) { return true; };
  // The flags that name another folder for the cache, for the message when it cannot be written.
  std::string cache_flags = "--cache_dir FOLDER";
};

template <typename Cache>
struct Prepared {
  Cache cache;
  std::string path;                  // of the cache's file; empty when it is in memory
  std::string summary;               // what was found, for messages
  std::vector<SkippedFile> remarks;  // the source's: what it left out without reading it
  bool was_there = false;            // the cache already existed, so the source was not read
};

// The part that does not depend on the Kind.
namespace preparation {
inline constexpr auto kProgressInterval = std::chrono::milliseconds(100);
int threads_of(const PrepareOptions& options);
int64_t pieces_of_part(int64_t pieces);
std::string parts_folder(const std::string& cache_path);
std::string part_name(size_t part);
std::string cache_path(const std::string& folder, const std::string& many, uint32_t version,
                       const std::string& fingerprint);
// A word for the names of temporary files that no other process uses, on this machine or another.
std::string unique_tag();
Error cannot_write(const Error& error, const std::string& many, const std::string& folder,
                   const std::string& cache_flags);
Error volume_failed(const Error& error, const std::string& piece);
Error stopped(const std::string& many, const std::string& parts_folder);  // no folder: in memory
Error nothing_read(const std::string& summary, const std::vector<SkippedFile>& skipped);
}  // namespace preparation

// One preparation: its threads take one part after the other and make a cache of each, in a file or in memory.
template <typename Kind>
class Preparation {
 public:
  using Cache = typename Kind::Cache;

  // path: of the cache; empty: in memory.
  Preparation(FileSystem& fs, const Kind& kind, std::string path, const PrepareOptions& options)
      : fs_(fs),
        kind_(kind),
        pieces_(kind.source.size()),
        path_(std::move(path)),
        parts_folder_(path_.empty() ? "" : preparation::parts_folder(path_)),
        options_(options),
        // One thread has no use for parts in memory: they would be held twice when they are joined.
        part_pieces_(in_memory() && preparation::threads_of(options) == 1 ? pieces_
                                                                          : preparation::pieces_of_part(pieces_)),
        parts_((static_cast<size_t>(pieces_ + part_pieces_ - 1)) / static_cast<size_t>(part_pieces_)) {}

  Result<Cache> run() {
    if (!in_memory()) {
      const Status made = make_directories(fs_, parts_folder_);
      if (!made.ok()) return cannot_write(made.error());
    }
    TRY(read_parts());
    return join_parts();
  }

 private:
  [[nodiscard]] bool in_memory() const { return path_.empty(); }
  [[nodiscard]] std::string part_path(size_t part) const {
    return join_path(parts_folder_, preparation::part_name(part));
  }
  // With this process's tag, because another process may write the same file.
  [[nodiscard]] std::string temporary_of(const std::string& path) const {
    return join_path(parent_path(path), ".tmp-" + tag_ + "-" + base_name(path));
  }
  [[nodiscard]] Error cannot_write(const Error& error) const {
    return preparation::cannot_write(error, Kind::kMany, parent_path(path_), options_.cache_flags);
  }

  // Returns when all parts exist, or with the first error.
  Status read_parts() {
    const size_t count = std::min<size_t>(static_cast<size_t>(preparation::threads_of(options_)), parts_.size());
    // Processes start at different parts, so that of two that prepare the same source each does about half.
    first_ = in_memory() ? 0 : std::hash<std::string>()(tag_) % parts_.size();
    std::vector<std::jthread> threads;
    MutexLock lock(mutex_);
    running_ = count;
    for (size_t i = 0; i < count; ++i) threads.emplace_back([this] { work(); });
    while (running_ > 0) {
      changed_.wait_for(lock, preparation::kProgressInterval);
      const int64_t done = pieces_done_;
      lock.unlock();
      const bool goes_on = options_.progress(done, pieces_);
      lock.lock();
      if (!goes_on && !error_) error_ = preparation::stopped(Kind::kMany, parts_folder_);
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

  [[nodiscard]] int64_t begin_of(size_t part) const { return static_cast<int64_t>(part) * part_pieces_; }
  [[nodiscard]] int64_t end_of(size_t part) const { return std::min(begin_of(part) + part_pieces_, pieces_); }

  void count_pieces(int64_t pieces) {
    const MutexLock lock(mutex_);
    pieces_done_ += pieces;
  }

  Status do_part(size_t part) {
    if (!in_memory()) {
      Result<Cache> there = Cache::open(fs_, part_path(part));
      if (there.ok()) {  // made by an earlier preparation or by another process
        parts_[part] = std::move(*there);
        count_pieces(end_of(part) - begin_of(part));
        return {};
      }
    }
    auto writer = kind_.writer(end_of(part) - begin_of(part));
    std::vector<SkippedFile> skipped;
    for (int64_t i = begin_of(part); i < end_of(part); ++i) {
      if (stopped()) return {};
      Result<std::vector<typename Kind::Piece>> read = kind_.source.read(i);
      if (read.ok()) {
        for (typename Kind::Piece& piece : *read) writer.add(std::move(piece));
      } else if (read.error().code == ErrorCode::kUnavailable) {
        // The volume failed, not the file. Skipping the piece now would leave it out of the cache for good.
        return preparation::volume_failed(read.error(), kind_.source.name(i));
      } else {
        skipped.push_back({kind_.source.name(i), read.error().message});
      }
      count_pieces(1);
    }
    auto bytes = std::make_shared<const std::string>(std::move(writer).finish(skipped));
    if (in_memory()) {
      parts_bytes_ += bytes->size();
      TRY_ASSIGN(parts_[part], Cache::from_bytes(std::move(bytes), "memory"));
      return {};
    }
    const Status written = write_file_atomically(fs_, part_path(part), *bytes, temporary_of(part_path(part)));
    if (!written.ok()) return cannot_write(written.error());
    TRY_ASSIGN(parts_[part], Cache::open(fs_, part_path(part)));
    return {};
  }

  Result<Cache> join_parts() {
    std::vector<const Cache*> parts;
    std::vector<SkippedFile> skipped;
    int64_t size = 0;
    for (const std::optional<Cache>& part : parts_) {
      parts.push_back(&*part);
      size += part->size();
      skipped.insert(skipped.end(), part->skipped().begin(), part->skipped().end());
    }
    if (size == 0) return preparation::nothing_read(kind_.source.summary(), skipped);
    if (in_memory() && parts_.size() == 1) return *std::move(parts_[0]);
    if (in_memory()) {
      std::string bytes;
      bytes.reserve(parts_bytes_);
      TRY(kind_.write_cache(parts, [&](const void* data, size_t count) {
        bytes.append(static_cast<const char*>(data), count);
        return Status();
      }));
      return Cache::from_bytes(std::make_shared<const std::string>(std::move(bytes)), "memory");
    }
    const Status written = write_file_atomically(
        fs_, path_, [&](const ByteSink& sink) { return kind_.write_cache(parts, sink); }, temporary_of(path_));
    if (!written.ok()) return cannot_write(written.error());
    return Cache::open(fs_, path_);
  }

  FileSystem& fs_;
  const Kind& kind_;
  int64_t pieces_;
  std::string path_;
  std::string parts_folder_;
  const PrepareOptions& options_;
  std::string tag_ = preparation::unique_tag();
  int64_t part_pieces_;
  size_t first_ = 0;
  std::atomic<size_t> next_ = 0;
  std::vector<std::optional<Cache>> parts_;  // each is set by the thread that took the part
  std::atomic<size_t> parts_bytes_ = 0;      // of those in memory

  Mutex mutex_;
  ConditionVariable changed_;
  size_t running_ GUARDED_BY(mutex_) = 0;
  int64_t pieces_done_ GUARDED_BY(mutex_) = 0;
  std::optional<Error> error_ GUARDED_BY(mutex_);
};

// cache_folder is made if it does not exist; empty: the cache stays in memory. Errors: kInvalid when nothing at all
// could be read (the message has the first reasons); kUnavailable when the source's volume fails or the folder cannot
// be written (the message says what to do); kCancelled.
template <typename Kind>
Result<Prepared<typename Kind::Cache>> prepare_cache(FileSystem& fs, const Kind& kind, const std::string& cache_folder,
                                                     const PrepareOptions& options) {
  using Cache = typename Kind::Cache;
  Prepared<Cache> prepared;
  prepared.summary = kind.source.summary();
  prepared.remarks = kind.source.remarks();
  if (!cache_folder.empty()) {
    prepared.path = preparation::cache_path(cache_folder, Kind::kMany, Kind::kVersion, kind.source.fingerprint());
    Result<Cache> there = Cache::open(fs, prepared.path);
    if (there.ok()) {
      prepared.cache = std::move(*there);
      prepared.was_there = true;
      return prepared;
    }
    // A damaged cache is made again and replaced.
  }
  Preparation<Kind> preparation(fs, kind, prepared.path, options);
  Result<Cache> made = preparation.run();
  if (!made.ok()) {
    if (prepared.path.empty() || made.error().code == ErrorCode::kCancelled) return made.error();
    // Another process that finished first has removed the parts that this one was writing.
    Result<Cache> of_another = Cache::open(fs, prepared.path);
    if (!of_another.ok()) return made.error();
    made = std::move(of_another);
  }
  prepared.cache = std::move(*made);
  if (!prepared.path.empty()) {
    // The parts are not needed any more. An error here only leaves them on the disk.
    static_cast<void>(remove_tree(fs, preparation::parts_folder(prepared.path)));
  }
  return prepared;
}

}  // namespace lockstep
