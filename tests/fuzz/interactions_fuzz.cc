// Any bytes as a data set: a refusal or a well-formed CSR, never anything else.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "runner/base/check.h"
#include "runner/data/interactions.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const lockstep::ReadOptions options{.min_count = 0, .max_bad_lines = 0.5};
  const lockstep::Result<lockstep::Dataset> dataset = lockstep::parse_interactions(text, "fuzz", options);
  if (!dataset.ok()) {
    LOCKSTEP_CHECK(!dataset.error().message.empty(), "a refusal says why");
    return 0;
  }
  const lockstep::Interactions& read = dataset->interactions;
  LOCKSTEP_CHECK(read.offsets.size() == static_cast<size_t>(read.num_users) + 2, "one range per user");
  LOCKSTEP_CHECK(read.offsets.back() == static_cast<int64_t>(read.items.size()), "the ranges cover the items");
  LOCKSTEP_CHECK(read.timestamps.empty() || read.timestamps.size() == read.items.size(), "times beside items");
  for (const int32_t item : read.items) LOCKSTEP_CHECK(item >= 1 && item <= read.num_items, "an item of the data set");
  return 0;
}
