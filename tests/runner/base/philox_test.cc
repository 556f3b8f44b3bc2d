#include "runner/base/philox.h"

#include <gtest/gtest.h>

#include <set>

namespace lockstep {
namespace {

void expect_block(const Philox4& block, const Philox4& expected) {
  for (int i = 0; i < 4; ++i) EXPECT_EQ(block.x[i], expected.x[i]) << "word " << i;
}

// Known answers of the paper's own library (Random123, kat_vectors: philox4x32 10).
TEST(Philox, gives_the_published_vectors) {
  expect_block(philox4x32_10({{0, 0, 0, 0}}, 0, 0), {{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}});
  expect_block(philox4x32_10({{~0U, ~0U, ~0U, ~0U}}, ~0U, ~0U), {{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}});
  expect_block(philox4x32_10({{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}}, 0xa4093822, 0x299f31d0),
               {{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}});
}

TEST(PhiloxStream, words_are_the_words_of_its_blocks) {
  const PhiloxStream stream{42, 3, 7, 11};
  for (uint32_t element = 0; element < 12; ++element) {
    EXPECT_EQ(stream.word(element), stream.block(element / 4).x[element % 4]);
  }
}

TEST(PhiloxStream, differs_in_every_part_of_its_key) {
  const PhiloxStream base{1, 1, 1, 1};
  std::set<uint32_t> words{base.word(0)};
  for (const PhiloxStream& other : {PhiloxStream{2, 1, 1, 1}, PhiloxStream{uint64_t{1} << 32, 1, 1, 1},
                                    PhiloxStream{1, 2, 1, 1}, PhiloxStream{1, 1, 2, 1}, PhiloxStream{1, 1, 1, 2}}) {
    words.insert(other.word(0));
  }
  words.insert(base.word(4));
  EXPECT_EQ(words.size(), 7U);
}

TEST(PhiloxStream, below_stays_below_and_reaches_every_value) {
  const PhiloxStream stream{5, 1, 0, 0};
  std::set<uint32_t> seen;
  for (uint64_t element = 0; element < 500; ++element) {
    const uint32_t value = stream.below(element, 7);
    ASSERT_LT(value, 7U);
    seen.insert(value);
  }
  EXPECT_EQ(seen.size(), 7U);
  EXPECT_EQ(stream.below(0, 1), 0U);
}

}  // namespace
}  // namespace lockstep
