// Any bytes are either refused with a reason or give a structure that passes check_structure and is the same once it
// was cached. The first byte says whether they are read as PDB, mmCIF or a line of JSON.
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "runner/base/check.h"
#include "runner/formats/open_text.h"
#include "runner/models/protein/data/structure_file.h"
#include "runner/models/protein/data/structure_json.h"
#include "tests/runner/data/structure_caches.h"

namespace {

lockstep::Result<lockstep::Structure> read(uint8_t kind, std::string bytes) {
  if (kind % 3 == 2) return lockstep::parse_structure_json(bytes);
  TRY_ASSIGN(const lockstep::OpenedText opened, lockstep::decode_text(std::move(bytes), "the file", 1 << 20));
  return lockstep::parse_structure(opened.text,
                                   kind % 3 == 0 ? lockstep::StructureFormat::kPdb : lockstep::StructureFormat::kMmcif);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  lockstep::Result<lockstep::Structure> structure =
      read(data[0], std::string(reinterpret_cast<const char*>(data) + 1, size - 1));
  if (!structure.ok()) {
    LOCKSTEP_CHECK(!structure.error().message.empty(), "a refusal says why");
    return 0;
  }
  LOCKSTEP_CHECK(lockstep::check_structure(*structure).ok(), "a structure that is read can be used");
  LOCKSTEP_CHECK(structure->remarks.size() <= 8, "a few remarks");
  size_t positions = 0;
  for (const lockstep::StructureChain& chain : structure->chains) {
    LOCKSTEP_CHECK(!chain.positions.empty() && !chain.id.empty(), "a chain has an id and positions");
    positions += chain.positions.size();
  }
  if (positions > 100'000) return 0;  // gaps that were filled: caching them takes the fuzzer's time
  const lockstep::StructureCache cache = lockstep::structure_cache_of({*structure});
  const auto view = cache.structure(0);
  LOCKSTEP_CHECK(view.ok() && view->size() == positions, "all positions are in the cache");
  LOCKSTEP_CHECK(cache.remarks().size() == structure->remarks.size(), "and so are the remarks");
  return 0;
}
