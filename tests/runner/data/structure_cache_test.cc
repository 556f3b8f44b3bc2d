#include "runner/models/protein/data/structure_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <string>

#include "runner/models/protein/data/structure_file.h"
#include "tests/runner/data/pdb_text.h"
#include "tests/runner/data/structure_caches.h"

namespace lockstep {
namespace {

using testing::HasSubstr;

std::vector<Structure> two_structures() {
  Structure first = *parse_structure(pdb_chain(3, 'A') + pdb_chain(2, 'B', "TRP"), StructureFormat::kPdb);
  first.name = "first";
  first.chains[1].cluster = 77;
  first.chains[1].split = ChainSplit::kTest;
  Structure second =
      *parse_structure(pdb_residue({}) + pdb_residue({.number = 5, .without = "O"}), StructureFormat::kPdb);
  second.name = "second";
  return {first, second};
}

std::string cache_bytes() { return structure_cache_bytes(two_structures(), {{"c.pdb", "is empty"}}); }

Result<StructureCache> opened(std::string bytes) { return structure_cache_from(std::move(bytes)); }

TEST(StructureCache, holds_what_was_put_into_it) {
  const Result<StructureCache> cache = opened(cache_bytes());
  ASSERT_TRUE(cache.ok()) << cache.error().message;
  ASSERT_EQ(cache->size(), 2);
  EXPECT_EQ(cache->length(0), 5);
  EXPECT_EQ(cache->skipped(), (std::vector<SkippedFile>{{"c.pdb", "is empty"}}));
  const StructureView first = *cache->structure(0);
  EXPECT_EQ(first.name, "first");
  ASSERT_EQ(first.chains.size(), 2U);
  EXPECT_EQ(first.chains[1].id, "B");
  EXPECT_EQ(first.chains[1].begin, 3U);
  EXPECT_EQ(first.chains[1].end, 5U);
  EXPECT_EQ(first.chains[1].cluster, 77);
  EXPECT_EQ(first.chains[1].split, ChainSplit::kTest);
  EXPECT_EQ(first.chains[1].group, 1U);
  EXPECT_TRUE(first.chains[0].is_protein);
  EXPECT_EQ(first.chain_of[4], 1U);
  EXPECT_EQ(first.types[4], residue_type_of('W'));
  EXPECT_EQ(first.numbers[4], 2);
  EXPECT_EQ(first.backbone[4][1], (Atom{7.0F, 1.1F, 0.3F}));
  EXPECT_EQ(first.insertion_codes[0], ' ');
  const StructureView second = *cache->structure(1);
  EXPECT_EQ(second.size(), 5U);
  EXPECT_EQ(second.flags[2], 0);
  EXPECT_TRUE(is_missing(second.backbone[4][3]));
}

TEST(StructureCache, a_changed_byte_is_found_before_it_is_used) {
  const std::string whole = cache_bytes();
  for (size_t at = 0; at < whole.size(); ++at) {
    std::string changed = whole;
    changed[at] = static_cast<char>(changed[at] ^ 0x10);
    const Result<StructureCache> cache = opened(changed);
    if (!cache.ok()) continue;
    bool refused = cache->skipped() != opened(whole)->skipped();  // they are text, not checked
    for (int64_t i = 0; i < cache->size(); ++i) refused = refused || !cache->structure(i).ok();
    EXPECT_TRUE(refused) << "byte " << at;
  }
}

TEST(CheckStructure, refuses_an_atom_that_is_so_far_away_that_distances_overflow) {
  Structure structure = two_structures()[0];
  EXPECT_TRUE(check_structure(structure).ok());
  for (const float far : {1e30F, -2e6F, std::numeric_limits<float>::infinity()}) {
    structure.chains[1].positions[1].backbone[3][2] = far;
    const Status checked = check_structure(structure);
    ASSERT_FALSE(checked.ok());
    EXPECT_THAT(checked.error().message, HasSubstr("chain B, residue 2: an atom is more than"));
  }
  structure.chains[1].positions[1].backbone[3] = kMissingAtom;
  EXPECT_TRUE(check_structure(structure).ok());
}

}  // namespace
}  // namespace lockstep
