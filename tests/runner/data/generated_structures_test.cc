#include "runner/models/protein/data/generated_structures.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <vector>

namespace lockstep {
namespace {

using testing::HasSubstr;

double distance(const Atom& a, const Atom& b) { return std::hypot(a[0] - b[0], a[1] - b[1], a[2] - b[2]); }

GeneratedStructuresSpec spec_of(const std::string& text) {
  const Result<std::optional<GeneratedStructuresSpec>> spec = parse_generated_structures(text);
  EXPECT_TRUE(spec.ok() && spec->has_value()) << text;
  return spec.ok() && spec->has_value() ? **spec : GeneratedStructuresSpec();
}

TEST(GeneratedStructures, the_word_may_have_a_count_and_a_length) {
  EXPECT_EQ(spec_of("generated").count, 100);
  EXPECT_EQ(spec_of("generated:7").count, 7);
  EXPECT_EQ(spec_of("generated:7:50").length, 50);
  for (const char* path : {"pdbs", "./generated", "generated_pdbs", ""}) {
    EXPECT_FALSE(parse_generated_structures(path)->has_value()) << path;
  }
  for (const char* wrong : {"generated:", "generated:0", "generated:x", "generated:5:1",
                            "generated:5:", "generated:5:10:1", "generated:1000001"}) {
    const Result<std::optional<GeneratedStructuresSpec>> spec = parse_generated_structures(wrong);
    ASSERT_FALSE(spec.ok()) << wrong;
    EXPECT_THAT(spec.error().message, HasSubstr("generated[:COUNT[:LENGTH]]"));
  }
}

TEST(GeneratedStructures, have_the_bond_lengths_of_proteins_and_pass_the_check) {
  const GeneratedStructuresSpec spec{.count = 20, .length = 60};
  for (int64_t i = 0; i < spec.count; ++i) {
    const Structure structure = generated_structure(spec, i);
    EXPECT_TRUE(check_structure(structure).ok());
    EXPECT_EQ(structure.chains.size(), i % 4 == 3 ? 2U : 1U);
    EXPECT_EQ(structure.chains.back().group, 0U);
    for (const StructureChain& chain : structure.chains) {
      EXPECT_GE(chain.positions.size(), 30U);
      EXPECT_LE(chain.positions.size(), 90U);
      for (size_t k = 0; k < chain.positions.size(); ++k) {
        const Backbone& backbone = chain.positions[k].backbone;
        EXPECT_NEAR(distance(backbone[0], backbone[1]), 1.458, 1e-3);
        EXPECT_NEAR(distance(backbone[1], backbone[2]), 1.525, 1e-3);
        EXPECT_NEAR(distance(backbone[2], backbone[3]), 1.231, 1e-3);
        if (k > 0) {
          EXPECT_NEAR(distance(chain.positions[k - 1].backbone[1], backbone[1]), 3.8, 0.05);
        }
      }
    }
  }
}

TEST(GeneratedStructures, follow_from_the_seed_alone) {
  const Structure once = generated_structure({.seed = 1}, 5);
  const Structure again = generated_structure({.seed = 1}, 5);
  const Structure other = generated_structure({.seed = 2}, 5);
  EXPECT_EQ(once.chains[0].positions[3].backbone, again.chains[0].positions[3].backbone);
  EXPECT_NE(once.chains[0].positions[3].backbone, other.chains[0].positions[3].backbone);
}

// A table of (φ, ψ, neighbours) made on one half of the structures guesses the other half.
TEST(GeneratedStructures, their_types_can_be_learnt_from_the_backbone) {
  const GeneratedStructuresSpec spec{.count = 200, .length = 100};
  using Place = std::array<int, 3>;
  std::map<Place, std::array<int, 20>> seen;
  std::array<int, 20> of_type = {};
  int right = 0;
  int guessed = 0;
  for (int64_t i = 0; i < spec.count; ++i) {
    const std::vector<Position> chain = generated_structure(spec, i).chains[0].positions;
    for (size_t k = 1; k + 1 < chain.size(); ++k) {
      const Backbone& here = chain[k].backbone;
      const auto bin = [](float angle) { return static_cast<int>(std::floor(angle / (M_PI / 6))); };
      const auto near = std::count_if(chain.begin(), chain.end(),
                                      [&](const Position& other) { return distance(other.backbone[1], here[1]) < 10; });
      const Place place = {bin(dihedral(chain[k - 1].backbone[2], here[0], here[1], here[2])),
                           bin(dihedral(here[0], here[1], here[2], chain[k + 1].backbone[0])), static_cast<int>(near)};
      std::array<int, 20>& counts = seen[place];
      if (i < spec.count / 2) {
        ++counts[chain[k].type];
        continue;
      }
      ++of_type[chain[k].type];
      ++guessed;
      right += std::max_element(counts.begin(), counts.end()) - counts.begin() == chain[k].type ? 1 : 0;
    }
  }
  EXPECT_GT(right, 0.38 * guessed);
  EXPECT_LT(*std::max_element(of_type.begin(), of_type.end()), 0.25 * guessed);
}

}  // namespace
}  // namespace lockstep
