#include "runner/models/protein/data/fragments.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "runner/models/protein/data/structure.h"

namespace lockstep {
namespace {

std::vector<int64_t> of(char letter) {
  const auto fragments = fragments_of(residue_type_of(letter));
  return {fragments.begin(), fragments.end()};
}

TEST(Fragments, are_those_of_the_described_model) {
  EXPECT_EQ(of('A'), (std::vector<int64_t>{4}));
  EXPECT_EQ(of('V'), (std::vector<int64_t>{15, 4, 4}));
  EXPECT_EQ(of('L'), (std::vector<int64_t>{5, 15, 4, 4}));
  EXPECT_EQ(of('I'), (std::vector<int64_t>{5, 15, 4, 5, 4}));
  EXPECT_EQ(of('M'), (std::vector<int64_t>{5, 5, 14, 4}));
  EXPECT_EQ(of('F'), (std::vector<int64_t>{5, 7}));
  EXPECT_EQ(of('Y'), (std::vector<int64_t>{5, 7, 6}));
  EXPECT_EQ(of('W'), (std::vector<int64_t>{5, 13}));
  EXPECT_EQ(of('S'), (std::vector<int64_t>{6}));
  EXPECT_EQ(of('T'), (std::vector<int64_t>{15, 6, 4}));
  EXPECT_EQ(of('N'), (std::vector<int64_t>{5, 10}));
  EXPECT_EQ(of('Q'), (std::vector<int64_t>{5, 5, 10}));
  EXPECT_EQ(of('K'), (std::vector<int64_t>{5, 5, 5, 5, 8}));
  EXPECT_EQ(of('R'), (std::vector<int64_t>{5, 5, 5, 11}));
  EXPECT_EQ(of('H'), (std::vector<int64_t>{5, 12}));
  EXPECT_EQ(of('D'), (std::vector<int64_t>{5, 9}));
  EXPECT_EQ(of('E'), (std::vector<int64_t>{5, 5, 9}));
  EXPECT_EQ(of('C'), (std::vector<int64_t>{14}));
  EXPECT_EQ(of('G'), (std::vector<int64_t>{}));
  EXPECT_EQ(of('P'), (std::vector<int64_t>{5, 5, 5}));
  EXPECT_EQ(of('X'), (std::vector<int64_t>{}));
  EXPECT_EQ(fragment_name(15), "BRANCH_CH");
}

TEST(Chi1Bin, has_five_degrees_and_wraps_at_pi) {
  EXPECT_EQ(chi1_bin(0.0F), 36);
  EXPECT_EQ(chi1_bin(static_cast<float>(-M_PI)), 0);
  EXPECT_EQ(chi1_bin(static_cast<float>(M_PI)), 0);
  EXPECT_EQ(chi1_bin(std::nextafter(static_cast<float>(M_PI), 0.0F)), 71);
  EXPECT_EQ(chi1_bin(kMissing), -1);
  EXPECT_EQ(chi1_bin(std::numeric_limits<float>::infinity()), 0);
  for (int64_t bin = 0; bin < kChi1Bins; ++bin) EXPECT_EQ(chi1_bin(chi1_of_bin(bin)), bin);
}

}  // namespace
}  // namespace lockstep
