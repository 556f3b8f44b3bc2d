#include "runner/models/jit/data/image_cache.h"

#include <algorithm>
#include <string_view>
#include <utility>

namespace lockstep {

Json image_facts(int64_t side, const std::vector<std::string>& classes) {
  return {{"side", side}, {"classes", classes}};
}

Result<ImageCache> ImageCache::from_records(RecordCache records) {
  ImageCache cache;
  cache.records_ = std::move(records);
  const Json& facts = cache.records_.facts();
  const Error damaged = cache.records_.corrupt("has damaged facts");
  if (!facts.is_object() || !facts.contains("side") || !facts.contains("classes")) return damaged;
  const Json& side = facts["side"];
  if (!side.is_number_unsigned() || side < 1 || side > kImageSideMax || !facts["classes"].is_array()) return damaged;
  cache.side_ = side.get<int64_t>();
  for (const Json& name : facts["classes"]) {
    if (!name.is_string()) return damaged;
    cache.classes_.push_back(name.get<std::string>());
  }
  for (int64_t i = 0; i < cache.size(); ++i) {
    if (cache.label(i) < std::max<int64_t>(1, std::ssize(cache.classes_))) continue;
    return cache.records_.corrupt("has a damaged index (image " + std::to_string(i) + ")");
  }
  return cache;
}

Result<std::span<const uint8_t>> ImageCache::pixels(int64_t i) const {
  TRY_ASSIGN(const std::string_view record, records_.record(i));
  if (record.size() != static_cast<size_t>(side_ * side_ * 3)) {
    return records_.corrupt("image " + std::to_string(i) + " is damaged");
  }
  return std::span<const uint8_t>(reinterpret_cast<const uint8_t*>(record.data()), record.size());
}

}  // namespace lockstep
