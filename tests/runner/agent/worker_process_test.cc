#include "runner/agent/worker_process.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <vector>

#include "runner/agent/beat_page_mapping.h"
#include "tests/support/temporary_folder.h"

namespace lockstep {
namespace {

// What a worker that is this program prints to stdout.
std::string output_of(const WorkerCommand& command) {
  const Result<BeatPageMapping> beats = BeatPageMapping::create();
  const Result<SpawnedWorker> worker = spawn_worker(command, 0, beats->fd());
  if (!worker.ok()) return worker.error().message;
  ::waitpid(worker->pid, nullptr, 0);
  std::array<char, 4096> text{};
  const ssize_t size = ::read(worker->stdout_fd, text.data(), text.size());
  for (const int fd : {worker->link_fd, worker->stdout_fd, worker->stderr_fd}) ::close(fd);
  return {text.data(), static_cast<size_t>(std::max<ssize_t>(size, 0))};
}

// A connection that another part of the agent has just accepted is not marked close-on-exec yet. A worker that
// inherited it would keep it open, and the peer would never see its end.
TEST(SpawnWorker, hands_over_what_the_worker_needs_and_nothing_else) {
  std::vector<int> strays;
  for (const int lowest : {3, 5, 9, 100}) strays.push_back(::fcntl(STDERR_FILENO, F_DUPFD, lowest));
  const std::string listed = output_of({.program = "/bin/ls", .arguments = {"/proc/self/fd"}, .environment = {}});
  for (const int stray : strays) ::close(stray);
  EXPECT_EQ(listed, "0\n1\n2\n3\n4\n5\n") << "stdin, stdout, stderr, the link, the beats, and ls's own";
}

TEST(SpawnWorker, names_a_program_that_cannot_be_run) {
  EXPECT_EQ(output_of({.program = "/nowhere/worker", .arguments = {}, .environment = {}}),
            "cannot run /nowhere/worker: No such file or directory");
}

TEST(SpawnWorker, keeps_the_token_of_the_job_to_the_agent) {
  const std::string variables = output_of({.program = "/bin/cat",
                                           .arguments = {"/proc/self/environ"},
                                           .environment = {{"LOCKSTEP_TOKEN", "secret"}, {"LOCKSTEP_JOB", "job"}}});
  EXPECT_THAT(variables, testing::HasSubstr("LOCKSTEP_JOB=job"));
  EXPECT_THAT(variables, testing::Not(testing::HasSubstr("secret")));
  EXPECT_THAT(variables, testing::Not(testing::HasSubstr("LOCKSTEP_TOKEN")));
}

class OomKills : public testing::Test {
 protected:
  void say(int kills) const { std::ofstream(path()) << "low 0\noom 9\noom_kill " << kills << "\n"; }
  [[nodiscard]] std::string path() const { return folder_.path() + "/memory.events"; }

  const TimePoint at_{std::chrono::hours(1)};

 private:
  TemporaryFolder folder_;
};

TEST_F(OomKills, are_taken_once_each_however_many_come_together) {
  say(2);
  OomKillCounter counter(path());
  EXPECT_FALSE(counter.claim_kill(at_));
  say(4);
  EXPECT_TRUE(counter.claim_kill(at_));
  EXPECT_TRUE(counter.claim_kill(at_ + kOomKillsTogether));  // its end is told a moment later
  EXPECT_FALSE(counter.claim_kill(at_ + kOomKillsTogether));
}

TEST_F(OomKills, of_others_are_not_blamed_on_a_later_kill) {
  say(0);
  OomKillCounter counter(path());
  say(3);
  EXPECT_TRUE(counter.claim_kill(at_));
  const auto later = at_ + 2 * kOomKillsTogether;
  EXPECT_FALSE(counter.claim_kill(later));
  say(4);
  EXPECT_TRUE(counter.claim_kill(later));
  EXPECT_FALSE(counter.claim_kill(later));
  std::filesystem::remove(path());
  EXPECT_FALSE(counter.claim_kill(later));
}

}  // namespace
}  // namespace lockstep
