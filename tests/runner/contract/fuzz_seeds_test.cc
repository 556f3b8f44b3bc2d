// The seeds of the messages' fuzzers must be messages that are sent today: a seed that does not decode is useless.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "runner/contract/coordination.h"
#include "runner/contract/messages.h"

namespace lockstep {
namespace {

std::vector<std::filesystem::path> seeds_of(const std::string& fuzzer) {
  const std::filesystem::directory_iterator files(std::filesystem::path(LOCKSTEP_FUZZ_SEEDS) / fuzzer);
  return {begin(files), end(files)};
}

std::string text_of(const std::filesystem::path& seed) {
  std::ifstream file(seed);
  std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  while (text.ends_with('\n')) text.pop_back();
  return text;
}

TEST(FuzzSeeds, of_the_conversations_are_what_a_member_says) {
  const std::vector<std::filesystem::path> seeds = seeds_of("coordinator_fuzz");
  ASSERT_FALSE(seeds.empty());
  for (const auto& seed : seeds) {
    int messages = 0;
    std::ifstream file(seed);
    for (std::string line; std::getline(file, line);) {
      if (line.front() < '1' || line.front() > '5') continue;  // a pause, or an end
      const Result<NodeMessage> message = decode_node_message(line.substr(2));
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
    const std::string text = text_of(seed);
    EXPECT_TRUE(decode_node_message(text).ok() || decode_coordinator_message(text).ok()) << seed << ": " << text;
  }
}

TEST(FuzzSeeds, of_a_workers_link_are_all_messages_of_both_sides) {
  std::set<size_t> of_workers;
  std::set<size_t> of_agents;
  for (const auto& seed : seeds_of("messages_fuzz")) {
    const std::string text = text_of(seed);
    const Result<WorkerMessage> from_worker = decode_worker_message(text);
    const Result<AgentMessage> from_agent = decode_agent_message(text);
    if (from_worker.ok()) of_workers.insert(from_worker->index());
    if (from_agent.ok()) of_agents.insert(from_agent->index());
    EXPECT_TRUE(from_worker.ok() || from_agent.ok()) << seed << ": " << text;
  }
  EXPECT_EQ(of_workers.size(), std::variant_size_v<WorkerMessage>);
  EXPECT_EQ(of_agents.size(), std::variant_size_v<AgentMessage>);
}

}  // namespace
}  // namespace lockstep
