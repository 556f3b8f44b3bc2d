// The seeds of the coordination fuzzers must be messages that agents send today: a seed that does not decode is
// useless.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "runner/contract/coordination.h"

namespace lockstep {
namespace {

std::vector<std::filesystem::path> seeds_of(const std::string& fuzzer) {
  const std::filesystem::directory_iterator files(std::filesystem::path(LOCKSTEP_FUZZ_SEEDS) / fuzzer);
  return {begin(files), end(files)};
}

TEST(FuzzSeeds, of_the_conversations_are_what_a_member_says) {
  const std::vector<std::filesystem::path> seeds = seeds_of("coordinator_fuzz");
  ASSERT_FALSE(seeds.empty());
  for (const auto& seed : seeds) {
    int messages = 0;
    std::ifstream file(seed);
    for (std::string line; std::getline(file, line);) {
      if (line.front() < '1' || line.front() > '5') continue;  // a pause, or an end
      const Result<MemberMessage> message = decode_member_message(line.substr(2));
      EXPECT_TRUE(message.ok()) << seed << ": " << line << "\n" << (message.ok() ? "" : message.error().message);
      ++messages;
    }
    EXPECT_GT(messages, 1) << seed;
  }
}

TEST(FuzzSeeds, of_single_messages_are_what_one_of_the_two_sides_says) {
  const std::vector<std::filesystem::path> seeds = seeds_of("coordination_fuzz");
  ASSERT_FALSE(seeds.empty());
  for (const auto& seed : seeds) {
    std::ifstream file(seed);
    std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    while (text.ends_with('\n')) text.pop_back();
    EXPECT_TRUE(decode_member_message(text).ok() || decode_coordinator_message(text).ok()) << seed << ": " << text;
  }
}

}  // namespace
}  // namespace lockstep
