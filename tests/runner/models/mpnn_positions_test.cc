#include "runner/models/protein/design/mpnn_positions.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runner/models/protein/design/mpnn_task_flags.h"
#include "tests/runner/data/structure_caches.h"

namespace lockstep {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;

// Chain A: residues 5, 6, (7 is not in the file), 8, 8A; chain B: 5, 6; chain R is no protein.
class MpnnPositions : public ::testing::Test {
 protected:
  MpnnPositions() {
    Structure structure{.name = "1abc", .chains = {}};
    structure.chains.push_back(chain("A", {{5, ' '}, {6, ' '}, {7, ' '}, {8, ' '}, {8, 'A'}}));
    structure.chains[0].positions[2].flags = 0;
    structure.chains.push_back(chain("B", {{5, ' '}, {6, ' '}}));
    structure.chains.push_back(chain("R", {{1, ' '}}));
    structure.chains[2].is_protein = false;
    cache_ = structure_cache_of({structure});
    view_ = cache_.structure(0).value();
  }

  static StructureChain chain(const std::string& id, const std::vector<std::pair<int32_t, char>>& numbers) {
    StructureChain made;
    made.id = id;
    for (const auto& [number, code] : numbers) {
      Position position;
      position.backbone = {{{0, 0, 0}, {1, 0, 0}, {1, 1, 0}, {1, 1, 1}}};
      position.number = number;
      position.insertion_code = code;
      position.type = 0;
      position.flags = kInFile | kStandardResidue;
      made.positions.push_back(position);
    }
    return made;
  }

  [[nodiscard]] std::string positions_error(const std::string& text) const {
    const auto found = positions_of(view_, text);
    return found.ok() ? "" : found.error().message;
  }
  [[nodiscard]] std::string tied_error(const std::string& text) const {
    const auto found = tied_positions_of(view_, text);
    return found.ok() ? "" : found.error().message;
  }

  StructureCache cache_;
  StructureView view_;
};

TEST_F(MpnnPositions, are_found_by_the_numbers_of_the_file) {
  EXPECT_THAT(positions_of(view_, "A:5").value(), ElementsAre(0));
  EXPECT_THAT(positions_of(view_, "A:8A B:5-6").value(), ElementsAre(4, 5, 6));
  EXPECT_THAT(positions_of(view_, "A:5,8;B:6").value(), ElementsAre(0, 3, 6));
  EXPECT_THAT(positions_of(view_, "").value(), IsEmpty());
}

TEST_F(MpnnPositions, a_range_passes_over_what_is_not_in_the_file) {
  EXPECT_THAT(positions_of(view_, "A:5-8A").value(), ElementsAre(0, 1, 3, 4));
}

TEST_F(MpnnPositions, that_do_not_exist_are_named_with_what_there_is) {
  EXPECT_EQ(positions_error("A:9"),
            "chain A of 1abc has no residue 9; its residues are numbered from 5 to 8, as in the file");
  EXPECT_THAT(positions_error("A:7"), HasSubstr("has no residue 7;"));
  EXPECT_THAT(positions_error("A:8B"), HasSubstr("has no residue 8B;"));
  EXPECT_EQ(positions_error("C:5"), "1abc has no chain \"C\"; it has A, B");
  EXPECT_EQ(positions_error("R:1"), "chain R of 1abc is no protein");
}

TEST_F(MpnnPositions, that_cannot_be_read_are_refused_with_an_example) {
  for (const char* const text : {"5", "A:", ":5", "A:x", "A:5-", "A:5-6-8", "A:5x6"}) {
    EXPECT_THAT(positions_error(text), HasSubstr("cannot be read; expected a chain and numbers")) << text;
  }
  EXPECT_THAT(positions_error("A:6-5"), HasSubstr("ends before it begins"));
}

TEST_F(MpnnPositions, tied_ones_go_side_by_side) {
  EXPECT_THAT(tied_positions_of(view_, "A:5-6=B:5-6 A:8=A:8A").value(),
              ElementsAre(ElementsAre(0, 5), ElementsAre(1, 6), ElementsAre(3, 4)));
  EXPECT_THAT(tied_error("A:5"), HasSubstr("ties nothing"));
  EXPECT_THAT(tied_error("A:5-6=B:5"), HasSubstr("2 residues on one side and 1 on another"));
  EXPECT_EQ(tied_error("A:5=B:5 A:5=A:6"), "residue 5 of chain A is tied twice");
  EXPECT_THAT(tied_error("A:5=B:9"), HasSubstr("chain B of 1abc has no residue 9"));
}

TEST_F(MpnnPositions, chains_are_all_proteins_unless_some_are_named) {
  EXPECT_THAT(chains_of(view_, "").value(), ElementsAre(0, 1));
  EXPECT_THAT(chains_of(view_, "B").value(), ElementsAre(1));
  EXPECT_THAT(chains_of(view_, "B,A").value(), ElementsAre(0, 1));
  EXPECT_EQ(chains_of(view_, "A D").error().message, "1abc has no chain \"D\"; it has A, B");
  EXPECT_EQ(chains_of(view_, "R").error().message, "chain R of 1abc is no protein");
}

Result<std::vector<std::pair<char, double>>> biases(const std::string& text) {
  MpnnTaskOptions options;
  options.bias = text;
  return biases_of(options);
}

TEST(MpnnTaskFlags, biases_are_letters_and_numbers) {
  EXPECT_THAT(biases("A:-1.1,F:0.7").value(), ElementsAre(Pair('A', -1.1), Pair('F', 0.7)));
  EXPECT_THAT(biases("").value(), IsEmpty());
  for (const char* const text : {"A", "A:", "B:1", "A:x", "A:1x", "A:nan", "AF:1"}) {
    ASSERT_FALSE(biases(text).ok()) << text;
    EXPECT_THAT(biases(text).error().message, HasSubstr("is no bias; expected")) << text;
  }
}

TEST(MpnnTaskFlags, temperatures_are_one_or_more_numbers_above_zero) {
  MpnnTaskOptions options;
  for (const auto& [text, number] : {std::pair("0.1", 1U), std::pair("0.1 0.2,0.3", 3U)}) {
    options.temperature = text;
    EXPECT_EQ(temperatures_of(options).value().size(), number) << text;
  }
  for (const char* const text : {"", " ", "0", "-1", "x", "0.1 y", "inf"}) {
    options.temperature = text;
    EXPECT_FALSE(temperatures_of(options).ok()) << text;
  }
}

}  // namespace
}  // namespace lockstep
