// StructureCache: all structures of a data set in one file that is mapped into memory and never copied.
//
// Role: training, scoring and design read structures from it; prepare_structures.h makes it.
// Threads: const methods from any thread. Ownership: views borrow from the cache and live no longer than it.
// The file (little-endian; structure_cache.cc): a header, the structures one after the other, their index, the lists of
// files that could not be read and of remarks. The file is not trusted: header, index and the index's checksum are
// checked when it is opened, a structure and its checksum when it is read, so a truncated or forged file is refused.
// Truncating the file while it is mapped ends the process (SIGBUS), as with every mapped file.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runner/base/file_system.h"
#include "runner/base/result.h"
#include "runner/data/cache_file.h"
#include "runner/models/protein/data/structure.h"

namespace lockstep {

// Raised with every change of the file format or of what the readers put into it; older caches are then made anew.
inline constexpr uint32_t kStructureCacheVersion = 2;

// As StructureChain; its positions are [begin, end) of the structure's.
struct ChainView {
  std::string_view id;
  uint32_t begin = 0;
  uint32_t end = 0;
  bool is_protein = false;
  uint32_t group = 0;
  int64_t cluster = -1;
  ChainSplit split = ChainSplit::kTrain;
};

// As Structure, its chains one after the other; the spans have one element for each position.
struct StructureView {
  std::string_view name;
  std::vector<ChainView> chains;
  std::span<const Backbone> backbone;
  std::span<const int32_t> numbers;
  std::span<const float> chi1;
  std::span<const uint16_t> chain_of;  // index in `chains`
  std::span<const uint8_t> types;      // in kResidueAlphabet
  std::span<const uint8_t> flags;      // PositionFlag
  std::span<const char> insertion_codes;

  [[nodiscard]] size_t size() const { return types.size(); }
};

class StructureCache {
 public:
  // Errors: those of the disk; kCorrupt (no cache, cut off, damaged); kConflict for a cache of another version. Each
  // names the file.
  static Result<StructureCache> open(FileSystem& fs, const std::string& path);
  // The same from memory; `what` names it in messages.
  static Result<StructureCache> from_bytes(std::shared_ptr<const std::string> bytes, const std::string& what);
  // Of structures that pass check_structure.
  static Result<StructureCache> from_structures(const std::vector<Structure>& structures);

  [[nodiscard]] int64_t size() const { return num_structures_; }
  // Of structure i in [0, size()): its positions, without reading it.
  [[nodiscard]] int64_t length(int64_t i) const;
  // kCorrupt when the structure's checksum is wrong.
  [[nodiscard]] Result<StructureView> structure(int64_t i) const;
  // Files that could not be read when the cache was made, in the order of their names.
  [[nodiscard]] const std::vector<SkippedFile>& skipped() const { return skipped_; }
  // Structure::remarks of the structures, by their names.
  [[nodiscard]] const std::vector<SkippedFile>& remarks() const { return remarks_; }
  // SHA-256 of the index, which holds the checksums of all structures: the same for the same data, independent of
  // paths.
  [[nodiscard]] const std::string& digest() const { return digest_; }

 private:
  friend Status write_structure_cache(const std::vector<const StructureCache*>& parts, const ByteSink& sink);

  Status check();
  [[nodiscard]] Error corrupt(const std::string& message) const;

  std::string what_;
  std::shared_ptr<const void> memory_;  // keeps bytes_ alive: a mapping or a string
  std::string_view bytes_;
  int64_t num_structures_ = 0;
  uint64_t index_offset_ = 0;
  std::vector<SkippedFile> skipped_;
  std::vector<SkippedFile> remarks_;
  std::string digest_;
};

// The bytes of a cache. The structures pass check_structure.
std::string structure_cache_bytes(const std::vector<Structure>& structures, const std::vector<SkippedFile>& skipped);

// One cache of all structures and skipped files of `parts`, in their order.
Status write_structure_cache(const std::vector<const StructureCache*>& parts, const ByteSink& sink);

}  // namespace lockstep
