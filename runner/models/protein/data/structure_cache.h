// StructureCache: all structures of a data set as records of a cache file, from which they are read without a copy.
//
// Role: training, scoring and design read structures from it; prepare_structures.h makes it.
// Threads: const methods from any thread. Ownership: views borrow from the cache and live no longer than it.
// A record is not trusted: its parts and the indices in them are checked when it is read.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runner/base/result.h"
#include "runner/data/record_cache.h"
#include "runner/models/protein/data/structure.h"

namespace lockstep {

inline constexpr CacheFormat kStructureCache = {.magic = "LSTRUCT\n", .version = 3, .name = "structure cache"};

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
  StructureCache() = default;
  // Of a cache of structure_record()s.
  explicit StructureCache(RecordCache records) : records_(std::move(records)) {}

  [[nodiscard]] int64_t size() const { return records_.size(); }
  // Of structure i in [0, size()): its positions, without reading it.
  [[nodiscard]] int64_t length(int64_t i) const { return records_.tag(i); }
  // kCorrupt when it is damaged.
  [[nodiscard]] Result<StructureView> structure(int64_t i) const;
  [[nodiscard]] const std::vector<SkippedFile>& skipped() const { return records_.skipped(); }
  // Structure::remarks of the structures, by their names.
  [[nodiscard]] const std::vector<SkippedFile>& remarks() const { return records_.remarks(); }
  [[nodiscard]] const std::string& digest() const { return records_.digest(); }

 private:
  RecordCache records_;
};

// The record of a structure that passes check_structure; its tag is the number of positions.
std::string structure_record(const Structure& structure);

}  // namespace lockstep
