#include "runner/cli/chaos_command.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <sstream>

#include "runner/contract/run_status.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::HasSubstr;

struct Said {
  int code;
  std::string out;
  std::string err;
};
Said chaos(const std::vector<std::string>& args) {
  std::ostringstream out;
  std::ostringstream err;
  const int code = chaos_command(args, out, err);
  return {code, out.str(), err.str()};
}

TEST(ChaosCommand, helps) {
  const Said help = chaos({"--help"});
  EXPECT_EQ(help.code, 0);
  for (const char* name : {"kill-rank", "stop-rank", "kill-agent", "FOLDER"}) {
    EXPECT_THAT(help.out, HasSubstr(name));
  }
  EXPECT_EQ(chaos({"kill-rank", "--help"}).code, 0);
}

TEST(ChaosCommand, names_what_is_wrong) {
  EXPECT_EQ(chaos({}).code, 2);
  EXPECT_THAT(chaos({}).err, HasSubstr("expected one of kill-rank, stop-rank"));
  EXPECT_THAT(chaos({"kill-rnk"}).err, HasSubstr("did you mean \"kill-rank\"?"));
  EXPECT_THAT(chaos({"kill-rank", "--rank", "-1"}).err, HasSubstr("--rank"));
  EXPECT_EQ(chaos({"kill-rank", "--rank", "x"}).code, 2);
  const std::string empty = std::filesystem::temp_directory_path().string() + "/no-such-run";
  EXPECT_EQ(chaos({"kill-rank", empty}).code, 2);
  EXPECT_THAT(chaos({"kill-rank", empty}).err, AllOf(HasSubstr(empty), HasSubstr("no run is active")));
}

TEST(DescribeRecovery, counts_from_the_fault) {
  const Recovery recovery{.cause = "SignalKILL",
                          .rank = 1,
                          .respawn_seconds = 0.28,
                          .forming_seconds = 0.021,
                          .redone_steps = 1,
                          .lost_seconds = 0.004,
                          .step = 121,
                          .world_size = 4,
                          .origin = "from rank 0",
                          .broken_ns = 5'008'000'000,
                          .committed_ns = 5'330'000'000};
  const std::string text = describe_recovery(Json::parse(to_json(recovery).dump()), 5'000'000'000);
  EXPECT_EQ(text,
            "  the group broke (SignalKILL) after 0.008 s\n"
            "  all workers were ready 0.280 s later, the new group formed in 0.021 s, the state was synced in unknown "
            "(from rank 0)\n"
            "  next committed step 121 after 0.330 s, with 4 ranks\n"
            "  1 step redone, 0.004 s of work lost\n");
}

}  // namespace
}  // namespace lockstep
