// prepare_cache: reads a source once, on all cores, into one RecordCache.
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
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "runner/base/file_system.h"
#include "runner/base/result.h"
#include "runner/data/record_cache.h"

namespace lockstep {

// What is prepared, in pieces that can be read one at a time, by any thread.
class PieceSource {
 public:
  virtual ~PieceSource() = default;

  // For messages: "25 structure files (.cif.gz 5, .pdb 20)".
  [[nodiscard]] virtual std::string summary() const = 0;
  // What is left out without being read: links that lead nowhere, names in lists that fit no structure.
  [[nodiscard]] virtual std::vector<SkippedFile> remarks() const { return {}; }
  // Pieces to read, at least 1; sorted, the same on every machine that sees the same files.
  [[nodiscard]] virtual int64_t size() const = 0;
  // The name of piece i for messages: a path relative to the source, or "chains.jsonl line 12".
  [[nodiscard]] virtual std::string name(int64_t i) const = 0;
  // A text of the files' relative paths, sizes and modification times, and of what else the records depend on.
  [[nodiscard]] virtual std::string fingerprint() const = 0;
};

struct PieceRecord {
  std::string bytes;
  uint32_t tag = 0;
  std::vector<SkippedFile> remarks;
};

// How the pieces of a source become records.
struct RecordKind {
  CacheFormat format;
  const char* many = "";    // "structures": in the file's name and in messages
  Json facts;               // RecordCache::facts
  size_t record_bytes = 0;  // of each record where all are equally large; 0: they differ
  // Of piece i, from any thread. Errors: without the piece's name; with kUnavailable or kNotFound the volume has failed
  // and not the piece, which is then not skipped.
  std::function<Result<std::vector<PieceRecord>>(int64_t i)> read;
};

// The folder of the prepared data: cache_dir, or .lockstep beside the data. Empty: it is kept in memory, because it is
// generated.
std::string cache_folder(const std::string& cache_dir, const std::string& data_path);

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

// cache_folder is made if it does not exist; empty: the cache stays in memory. Errors: kInvalid when nothing at all
// could be read (the message has the first reasons); kUnavailable when the source's volume fails or the folder cannot
// be written (the message says what to do); kCancelled.
Result<Prepared<RecordCache>> prepare_cache(FileSystem& fs, const PieceSource& source, const RecordKind& kind,
                                            const std::string& cache_folder, const PrepareOptions& options);

// The same with the cache that is read from the records.
template <typename Cache>
Prepared<Cache> prepared_as(Cache cache, Prepared<RecordCache>&& records) {
  return {.cache = std::move(cache),
          .path = std::move(records.path),
          .summary = std::move(records.summary),
          .remarks = std::move(records.remarks),
          .was_there = records.was_there};
}

}  // namespace lockstep
