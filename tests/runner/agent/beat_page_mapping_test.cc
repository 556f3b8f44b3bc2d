#include "runner/agent/beat_page_mapping.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

namespace lockstep {
namespace {

constexpr int64_t kSecond = 1'000'000'000;

TEST(BeatPageMapping, says_nothing_at_first_and_then_what_the_worker_writes) {
  Result<BeatPageMapping> memory = BeatPageMapping::create();
  ASSERT_TRUE(memory.ok());
  EXPECT_EQ(memory->read().alive_ns, 0);
  EXPECT_GT(memory->read().changed_ns, 0) << "its process starts now: one that comes to nothing is no progress";
  EXPECT_EQ(memory->read().activity, Activity::kLoading);
  auto* const page =
      static_cast<BeatPage*>(::mmap(nullptr, sizeof(BeatPage), PROT_READ | PROT_WRITE, MAP_SHARED, memory->fd(), 0));
  ASSERT_NE(page, MAP_FAILED);
  BeatPageMapping moved = std::move(*memory);
  moved.close_fd();
  page->step = 7;
  page->committed_ns = 5;
  page->generation = 9;
  page->prepared = 3;
  page->to_prepare = 4;
  page->activity = Activity::kTraining;
  page->phase = Phase::kForward;
  page->phase_ns[static_cast<size_t>(Phase::kForward)] = 3;
  const BeatSnapshot beats = moved.read();
  EXPECT_EQ(beats.step, 7);
  EXPECT_EQ(beats.committed_ns, 5);
  EXPECT_EQ(beats.generation, 9U);
  EXPECT_EQ(beats.prepared, 3);
  EXPECT_EQ(beats.to_prepare, 4);
  EXPECT_EQ(beats.activity, Activity::kTraining);
  EXPECT_EQ(beats.phase, Phase::kForward);
  EXPECT_EQ(beats.phase_ns[static_cast<size_t>(Phase::kForward)], 3);
  EXPECT_EQ(page->magic, kBeatPageMagic);
  EXPECT_EQ(page->version, kBeatPageVersion);
  ::munmap(page, sizeof(BeatPage));
}

TEST(BeatPageMapping, takes_what_it_does_not_know_for_no_progress) {
  constexpr int64_t kLater = int64_t{1} << 62;
  Result<BeatPageMapping> memory = BeatPageMapping::create();
  ASSERT_TRUE(memory.ok());
  const int64_t created_ns = memory->read().changed_ns;
  BeatPageMapping moved = std::move(*memory);
  auto* const page =
      static_cast<BeatPage*>(::mmap(nullptr, sizeof(BeatPage), PROT_READ | PROT_WRITE, MAP_SHARED, moved.fd(), 0));
  ASSERT_NE(page, MAP_FAILED);
  page->activity = Activity::kTraining;
  page->changed_ns = kLater;
  EXPECT_EQ(moved.read().changed_ns, kLater);
  page->activity = static_cast<Activity>(77);
  EXPECT_EQ(moved.read().activity, Activity::kLoading);
  EXPECT_EQ(moved.read().changed_ns, created_ns);
  page->activity = Activity::kTraining;
  page->phase = static_cast<Phase>(-1);
  EXPECT_EQ(moved.read().phase, Phase::kOther);
  EXPECT_EQ(moved.read().changed_ns, created_ns);
  page->committed_ns = kLater - 1;
  EXPECT_EQ(moved.read().changed_ns, kLater - 1) << "a step is progress, whatever the worker does meanwhile";
  ::munmap(page, sizeof(BeatPage));
}

BeatSnapshot working() {
  BeatSnapshot beats;
  for (size_t i = 0; i < kPhaseCount; ++i) beats.phase_ns[i] = kSecond;
  beats.changed_ns = 100 * kSecond;
  beats.alive_ns = 99 * kSecond;
  beats.phase = Phase::kForward;
  beats.step = 12;
  return beats;
}

TEST(WorkerBeat, counts_its_own_work_with_the_phase_that_runs) {
  BeatSnapshot beats = working();
  EXPECT_DOUBLE_EQ(busy_seconds(beats, 103 * kSecond),
                   8.0);  // data_wait, forward, backward, optimizer, other; 3 s more
  beats.phase = Phase::kGradSync;
  EXPECT_DOUBLE_EQ(busy_seconds(beats, 103 * kSecond), 5.0);
  const WorkerBeat beat = worker_beat(beats, 3, 103 * kSecond);
  EXPECT_EQ(beat.local_rank, 3);
  EXPECT_EQ(beat.step, 12);
  EXPECT_DOUBLE_EQ(beat.seconds_unchanged, 3.0);
  EXPECT_DOUBLE_EQ(worker_beat(BeatSnapshot{}, 0, 103 * kSecond).seconds_unchanged, 0.0);
}

TEST(WorkerBeat, does_not_take_the_time_between_the_steps_of_a_program_without_phases_for_work) {
  BeatSnapshot beats;
  beats.phase = Phase::kOther;
  beats.changed_ns = 100 * kSecond;
  EXPECT_DOUBLE_EQ(busy_seconds(beats, 103 * kSecond), 0.0);
}

TEST(WorkerBeat, knows_the_last_sign_of_life_and_who_waits_for_peers) {
  BeatSnapshot beats = working();
  EXPECT_EQ(last_sign_of_life_ns(beats), 100 * kSecond);
  beats.alive_ns = 101 * kSecond;
  EXPECT_EQ(last_sign_of_life_ns(beats), 101 * kSecond);
  EXPECT_FALSE(is_in_collective(beats));
  beats.phase = Phase::kGradSync;
  EXPECT_TRUE(is_in_collective(beats));
  beats.phase = Phase::kOther;
  beats.activity = Activity::kForming;
  EXPECT_TRUE(is_in_collective(beats));
}

}  // namespace
}  // namespace lockstep
