// Caches of structures in memory.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "runner/models/protein/data/structure_cache.h"

namespace lockstep {

inline std::string structure_cache_bytes(const std::vector<Structure>& structures,
                                         const std::vector<SkippedFile>& skipped = {}) {
  RecordCacheWriter writer(kStructureCache);
  std::vector<SkippedFile> remarks;
  for (const Structure& structure : structures) {
    size_t positions = 0;
    for (const StructureChain& chain : structure.chains) positions += chain.positions.size();
    writer.add(structure_record(structure), static_cast<uint32_t>(positions));
    for (const std::string& remark : structure.remarks) remarks.push_back({structure.name, remark});
  }
  return std::move(writer).finish(Json::object(), skipped, remarks);
}

inline Result<StructureCache> structure_cache_from(std::string bytes) {
  TRY_ASSIGN(RecordCache records, RecordCache::from_bytes(std::make_shared<const std::string>(std::move(bytes)),
                                                          "test.cache", kStructureCache));
  return StructureCache(std::move(records));
}

inline StructureCache structure_cache_of(const std::vector<Structure>& structures) {
  return structure_cache_from(structure_cache_bytes(structures)).value();
}

}  // namespace lockstep
