// Any bytes are either refused or give structures whose every position can be read. The first byte says whether they
// are taken as they are or, so that the checksums do not keep everything out, as the text of a structure that is then
// cached.
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "runner/base/check.h"
#include "runner/models/protein/data/structure_file.h"
#include "runner/models/protein/data/structure_json.h"
#include "tests/runner/data/structure_caches.h"

namespace {

void read_all(const lockstep::StructureCache& cache) {
  for (int64_t i = 0; i < cache.size(); ++i) {
    const lockstep::Result<lockstep::StructureView> structure = cache.structure(i);
    if (!structure.ok()) continue;
    float sum = 0;
    for (size_t k = 0; k < structure->size(); ++k) {
      LOCKSTEP_CHECK(structure->types[k] <= lockstep::kUnknownResidue, "a residue type");
      const lockstep::ChainView& chain = structure->chains.at(structure->chain_of[k]);
      LOCKSTEP_CHECK(chain.begin <= k && k < chain.end, "a position of its chain");
      sum += structure->backbone[k][3][2] + structure->chi1[k] + static_cast<float>(structure->numbers[k]);
      sum += static_cast<float>(structure->flags[k] + structure->insertion_codes[k]);
    }
    volatile float keep = sum;
    static_cast<void>(keep);
  }
}

void check(const lockstep::Result<lockstep::Structure>& structure) {
  if (!structure.ok()) {
    LOCKSTEP_CHECK(!structure.error().message.empty(), "a refusal says why");
    return;
  }
  LOCKSTEP_CHECK(lockstep::check_structure(*structure).ok(), "readers return what can be cached");
  const lockstep::StructureCache cache = lockstep::structure_cache_of({*structure});
  LOCKSTEP_CHECK(cache.structure(0).ok(), "what was written is read");
  read_all(cache);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string text(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0] % 4) {
    case 0: {
      const auto cache = lockstep::structure_cache_from(text);
      if (cache.ok()) read_all(*cache);
      break;
    }
    case 1:
      check(lockstep::parse_structure(text, lockstep::StructureFormat::kPdb));
      break;
    case 2:
      check(lockstep::parse_structure(text, lockstep::StructureFormat::kMmcif));
      break;
    default:
      check(lockstep::parse_structure_json(text));
  }
  return 0;
}
