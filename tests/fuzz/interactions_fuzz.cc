// Any bytes as a data set: a refusal or a well-formed CSR, never anything else.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "runner/base/check.h"
#include "runner/data/interactions.h"
#include "runner/formats/open_text.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  // Of any bytes, and of the text that a file of these bytes is opened as.
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const auto opened = lockstep::decode_text(std::string(bytes), "fuzz", size + 1);
  const std::string_view text = size % 2 == 0 || !opened.ok() ? bytes : std::string_view(opened->text);
  const lockstep::ReadOptions options{.min_count = static_cast<int64_t>(size % 3), .max_bad_lines = 0.5};
  const lockstep::Result<lockstep::Dataset> dataset = lockstep::parse_interactions(text, "fuzz", options);
  if (!dataset.ok()) {
    LOCKSTEP_CHECK(!dataset.error().message.empty(), "a refusal says why");
    return 0;
  }
  const lockstep::Interactions& read = dataset->interactions;
  LOCKSTEP_CHECK(read.offsets.size() == static_cast<size_t>(read.num_users) + 2, "one range per user");
  LOCKSTEP_CHECK(read.offsets.back() == static_cast<int64_t>(read.items.size()), "the ranges cover the items");
  LOCKSTEP_CHECK(read.timestamps.empty() || read.timestamps.size() == read.items.size(), "times beside items");
  LOCKSTEP_CHECK(dataset->report.dropped_events >= 0, "what is dropped was there");
  for (const int32_t item : read.items) LOCKSTEP_CHECK(item >= 1 && item <= read.num_items, "an item of the data set");
  return 0;
}
