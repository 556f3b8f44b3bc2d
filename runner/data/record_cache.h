// RecordCache: the prepared records of a data set (structures, images) in one file that is mapped into memory and never
// copied.
//
// Role: prepare_cache.h makes it; StructureCache and ImageCache read what is in its records.
// Threads: const methods from any thread. Ownership: records are borrowed from the cache and live no longer than it.
// The file (little-endian; record_cache.cc): a header, the records, their index, the facts, and the lists of files that
// could not be read and of remarks. The file is not trusted: header, index and the index's checksum are checked when it
// is opened, a record's checksum when it is read, so a truncated or damaged file is refused. Truncating the file while
// it is mapped ends the process (SIGBUS), as with every mapped file.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "runner/base/file_system.h"
#include "runner/base/json.h"
#include "runner/base/result.h"
#include "runner/data/cache_file.h"

namespace lockstep {

struct CacheFormat {
  std::string_view magic;  // the file's first 8 bytes
  // Raised with every change of the file or of what the readers put into it; older caches are then made anew.
  uint32_t version = 0;
  const char* name = "";  // for messages: "structure cache"
};

// Records begin at multiples of so many bytes, in the file and in memory.
inline constexpr size_t kRecordAlignment = 8;

// In the file's index.
struct RecordEntry {
  uint64_t offset = 0;
  uint64_t bytes = 0;
  uint32_t crc32 = 0;  // of the bytes up to the next multiple of kRecordAlignment
  uint32_t tag = 0;    // what the kind of data says about a record without reading it
};

class RecordCache {
 public:
  // Errors: those of the disk; kCorrupt (no cache, cut off, damaged); kConflict for a cache of another version. Each
  // names the file.
  static Result<RecordCache> open(FileSystem& fs, const std::string& path, const CacheFormat& format);
  // The same from memory; `what` names it in messages.
  static Result<RecordCache> from_bytes(std::shared_ptr<const std::string> bytes, const std::string& what,
                                        const CacheFormat& format);

  [[nodiscard]] int64_t size() const { return num_records_; }
  // Of record i in [0, size()).
  [[nodiscard]] uint32_t tag(int64_t i) const { return entry(i).tag; }
  // kCorrupt when its checksum is wrong. A right checksum does not make the content right: a forged file has one, too.
  [[nodiscard]] Result<std::string_view> record(int64_t i) const;
  // What is true of all records, as their writer gave it.
  [[nodiscard]] const Json& facts() const { return facts_; }
  // Files that could not be read when the cache was made, in the order of their names.
  [[nodiscard]] const std::vector<SkippedFile>& skipped() const { return skipped_; }
  // On files that were read.
  [[nodiscard]] const std::vector<SkippedFile>& remarks() const { return remarks_; }
  // SHA-256 of the index, which holds the checksums and tags of all records, and of the facts: the same for the same
  // data, independent of paths.
  [[nodiscard]] const std::string& digest() const { return digest_; }
  // kCorrupt, with the file's name and what to do.
  [[nodiscard]] Error corrupt(const std::string& message) const;

 private:
  friend Status write_record_cache(const CacheFormat& format, const std::vector<const RecordCache*>& parts,
                                   const ByteSink& sink);

  static Result<RecordCache> checked(CacheBytes file, const std::string& what, const CacheFormat& format);
  Status check(const CacheFormat& format);
  [[nodiscard]] RecordEntry entry(int64_t i) const;

  std::string what_;
  CacheBytes file_;
  int64_t num_records_ = 0;
  uint64_t index_offset_ = 0;
  Json facts_;
  std::vector<SkippedFile> skipped_;
  std::vector<SkippedFile> remarks_;
  std::string digest_;
};

// Makes the bytes of a cache, one record after the other.
class RecordCacheWriter {
 public:
  // Reserves memory for `records` of `record_bytes` each; 0: they differ, or nobody knows. `format` outlives it.
  explicit RecordCacheWriter(const CacheFormat& format, int64_t records = 0, size_t record_bytes = 0);

  void add(std::string_view record, uint32_t tag);
  [[nodiscard]] std::string finish(const Json& facts, const std::vector<SkippedFile>& skipped,
                                   const std::vector<SkippedFile>& remarks) &&;

 private:
  const CacheFormat& format_;
  std::string bytes_;  // room for the header, and the records
  std::vector<RecordEntry> index_;
};

// One cache of all records and lists of `parts`, in their order; at least one part. kCorrupt: two differ in their
// facts.
Status write_record_cache(const CacheFormat& format, const std::vector<const RecordCache*>& parts,
                          const ByteSink& sink);

}  // namespace lockstep
