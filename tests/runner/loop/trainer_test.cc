#include "runner/loop/trainer.h"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <sstream>
#include <stdexcept>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "runner/base/forwarding_file_system.h"
#include "runner/base/line_channel.h"
#include "runner/checkpoint/reader.h"
#include "runner/contract/beat_page.h"
#include "runner/contract/messages.h"
#include "runner/dist/device_stream.h"
#include "runner/link/agent_session.h"
#include "runner/link/stop_signals.h"
#include "tests/runner/formats/fault_file_system.h"
#include "tests/runner/loop/test_worker.h"
#include "tests/runner/loop/toy_workload.h"
#include "tests/runner/support/asynchronous_device.h"
#include "tests/runner/support/ranks_as_threads.h"
#include "tests/support/temporary_folder.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// Two steps an epoch, of 8 sentences in batches of 4. The score is the number of evaluations, or less than nothing of
// it, and the guide's weight file is named after its epoch.
class ScoredToy final : public ToyWorkload {
 public:
  ScoredToy() : ToyWorkload(even_toy(8)) { info_.best = {.name = "score"}; }
  Result<std::vector<MetricSum>> evaluate(const EvaluationShard& shard) override {
    if (in_evaluation) std::exchange(in_evaluation, nullptr)(shard);
    if (!shard.goes_on()) return std::vector<MetricSum>();
    const bool first = shard.rank == 0;
    const int score = gets_worse ? -++evaluations_ : ++evaluations_;
    return std::vector<MetricSum>{
        {.name = "score", .sum = first ? static_cast<double>(score) : 0.0, .count = first ? 1.0 : 0.0}};
  }
  std::vector<std::string> outputs(const EvaluationReport& report) override {
    if (in_outputs && report.epoch == epoch_of_outputs) std::exchange(in_outputs, nullptr)();
    return {"epoch" + std::to_string(report.epoch) + ".pth"};
  }
  std::vector<at::Tensor> loss(const DeviceBatch& batch) override {
    if (in_step && batch.share.step == step_of_hook) std::exchange(in_step, nullptr)();
    ++batches;
    if (batches == breaks_device_at_batch) {
      throw c10::AcceleratorError({__func__, __FILE__, __LINE__}, 700, "CUDA error: an illegal memory access");
    }
    return ToyWorkload::loss(batch);
  }

  int batches = 0;                  // taken so far
  int breaks_device_at_batch = -1;  // the device fails in its forward
  bool gets_worse = false;
  std::function<void()> in_outputs;  // once, when all ranks have the sums of the evaluation of …
  int64_t epoch_of_outputs = 1;      // … this epoch
  std::function<void(const EvaluationShard&)> in_evaluation;  // once, as a part of the next one
  std::function<void()> in_step;                              // once, in …
  int64_t step_of_hook = 1;                                   // … this step

 private:
  int evaluations_ = 0;
};

using TestWorker = WorkerOf<ScoredToy>;

// A step that is given up sets the step on the beat page back. The agent would take the time of this change for that of
// a commit.
TEST(Reporter, shows_a_commit_only_where_the_step_goes_on) {
  const RunConfig config;
  PhaseClock clock(Phase::kStartup, std::chrono::steady_clock::now());
  BeatPage page;
  Reporter reporter({.config = &config, .assignment = assigned(0, 1), .clock = &clock, .page = &page});
  reporter.beat(7, Activity::kTraining);
  const int64_t committed = page.committed_ns;
  EXPECT_GT(committed, 0);
  reporter.beat(7, Activity::kEvaluating);
  reporter.beat(6, Activity::kAwaiting);
  EXPECT_EQ(page.committed_ns, committed);
  EXPECT_EQ(page.step, 6);
  reporter.beat(7, Activity::kTraining);
  EXPECT_GT(page.committed_ns, committed);
}

// Whatever call of the volume fails: the run says that it failed, or its last checkpoint is there, and is marked the
// best, even where it was written a second time.
TEST(Trainer, keeps_the_best_mark_of_a_checkpoint_that_is_written_again) {
  PosixFileSystem posix;
  int written_again = 0;
  bool ended = false;
  for (int n = 1; !ended; ++n) {
    ASSERT_LT(n, 500);
    const TemporaryFolder folder;
    FaultFileSystem fs(posix, FaultFileSystem::Fault::kFailOnce, n, EIO);
    TestWorker worker(fs, folder.path(), 0, 1);
    const Outcome outcome = worker.run_alone(1);
    ended = fs.failures() == 0;
    if (outcome.code != ExitCode::kDone) continue;
    const Result<ResumeResult> found = load_newest_checkpoint(posix, folder.path(), worker.identity());
    ASSERT_TRUE(found.ok()) << n << ": " << found.error().message;
    ASSERT_TRUE(found->checkpoint) << n;
    EXPECT_EQ(found->checkpoint->state.step, 2) << n;
    EXPECT_TRUE(found->checkpoint->state.is_best) << n << ": " << testing::PrintToString(fs.log());
    const auto opened = [](const std::string& call) { return call == "open model.safetensors"; };
    if (std::count_if(fs.log().begin(), fs.log().end(), opened) > 1) ++written_again;
  }
  EXPECT_GT(written_again, 5);
}

Result<ResumeResult> newest_in(const TemporaryFolder& folder, const TestWorker& worker) {
  PosixFileSystem fs;
  return load_newest_checkpoint(fs, folder.path(), worker.identity());
}

// The lines of a metrics.jsonl: "3" for a step, "4e" for an evaluation.
std::vector<std::string> steps_in(const std::string& path) {
  std::vector<std::string> steps;
  std::istringstream lines(contents(path));
  for (std::string line; std::getline(lines, line);) {
    const Json record = Json::parse(line);
    steps.push_back(std::to_string(record["step"].get<int64_t>()) + (record.contains("evaluation") ? "e" : ""));
  }
  return steps;
}

// Both ranks train in one group; what each ends with.
std::array<Outcome, 2> run_both(std::array<TestWorker*, 2> workers, uint64_t generation) {
  const StoreHandle store(c10::make_intrusive<c10d::HashStore>());
  std::array<Outcome, 2> outcomes;
  on_ranks(
      2,
      [&](ProcessGroup& group) {
        const auto rank = static_cast<size_t>(group.rank());
        outcomes[rank] = workers[rank]->run(group, store);
      },
      at::kCPU, generation);
  return outcomes;
}

// Node 0 was lost before it wrote the last checkpoint: its successor finds a finished run, and writes it.
TEST(Trainer, writes_the_last_checkpoint_of_a_finished_run_that_its_predecessor_did_not) {
  const TemporaryFolder first_folder;
  const TemporaryFolder second_folder;
  PosixFileSystem fs;
  TestWorker survivor(fs, first_folder.path(), 0, 1);
  ASSERT_EQ(survivor.run_alone(1).code, ExitCode::kDone);
  TestWorker successor(fs, second_folder.path(), 0, 2);
  for (const Outcome& outcome : run_both({&successor, &survivor}, 2)) {
    EXPECT_EQ(outcome.code, ExitCode::kDone) << outcome.message;
  }
  const Result<ResumeResult> found = newest_in(second_folder, successor);
  ASSERT_TRUE(found.ok() && found->checkpoint);
  EXPECT_EQ(found->checkpoint->state.step, 2);
  EXPECT_TRUE(load_weights(fs, second_folder.file("epoch1.pth")).ok());
}

// It writes the lines in their order: a run that resumes in between relies on it.
TEST(Trainer, writes_the_line_of_an_evaluation_before_those_of_later_steps) {
  const TemporaryFolder first_folder;
  const TemporaryFolder second_folder;
  PosixFileSystem fs;
  TestWorker survivor(fs, first_folder.path(), 0, 1, TestWorker::Agent::kOnLink);
  TestWorker successor(fs, second_folder.path(), 0, 2);
  for (TestWorker* const worker : {&successor, &survivor}) {
    worker->config.training.num_epochs = 3;
    worker->config.training.log_every = 1;
  }
  survivor.workload.step_of_hook = 2;
  survivor.workload.in_step = [&] { survivor.leave(1); };  // with the step after
  ASSERT_EQ(survivor.run_alone(1).wait_reason, kLeftRegroup);
  ASSERT_EQ(survivor.step(), 4);
  for (const Outcome& outcome : run_both({&successor, &survivor}, 2)) {
    EXPECT_EQ(outcome.code, ExitCode::kDone) << outcome.message;
  }
  EXPECT_EQ(steps_in(second_folder.file("metrics.jsonl")),
            (std::vector<std::string>{"1", "2", "2e", "3", "4", "4e", "5", "6", "6e"}));
}

// … and if the survivor becomes rank 0, it must not assume that it has written the checkpoint itself, nor the lines.
TEST(Trainer, writes_the_last_checkpoint_when_it_becomes_rank_0_at_the_end) {
  const TemporaryFolder folder;
  PosixFileSystem fs;
  TestWorker lost(fs, folder.path(), 0, 2);
  TestWorker survivor(fs, folder.path(), 1, 2);
  for (const Outcome& outcome : run_both({&lost, &survivor}, 1)) ASSERT_EQ(outcome.code, ExitCode::kDone);
  ASSERT_TRUE(remove_tree(fs, folder.path() + "/step-00000002").ok());
  const std::string lines = contents(folder.file("metrics.jsonl"));
  folder.write("metrics.jsonl", lines.substr(0, lines.find('\n') + 1));
  EXPECT_EQ(survivor.run_alone(2).code, ExitCode::kDone);
  EXPECT_EQ(steps_in(folder.file("metrics.jsonl")), (std::vector<std::string>{"1", "2", "2e"}));
  const Result<ResumeResult> found = newest_in(folder, survivor);
  ASSERT_TRUE(found.ok() && found->checkpoint);
  EXPECT_EQ(found->checkpoint->state.step, 2);
}

// The group breaks when rank 1 has the sums of an evaluation and rank 0 does not know what to make of them.
TEST(Trainer, writes_the_best_checkpoint_although_rank_0_missed_the_evaluation) {
  const TemporaryFolder folder;
  PosixFileSystem fs;
  TestWorker zero(fs, folder.path(), 0, 2);
  TestWorker one(fs, folder.path(), 1, 2);
  for (TestWorker* worker : {&zero, &one}) {
    worker->config.training.num_epochs = 2;
    worker->workload.gets_worse = true;
  }
  zero.workload.in_outputs = [] { throw std::runtime_error("the sums came, and nothing after them"); };
  for (const Outcome& outcome : run_both({&zero, &one}, 1)) EXPECT_NE(outcome.code, ExitCode::kDone);
  for (const Outcome& outcome : run_both({&zero, &one}, 2)) EXPECT_EQ(outcome.code, ExitCode::kDone) << outcome.message;
  const Result<ResumeResult> best = load_checkpoint(fs, folder.path() + "/step-00000002");
  ASSERT_TRUE(best.ok() && best->checkpoint) << "the best one was never written";
  EXPECT_TRUE(best->checkpoint->state.is_best);
  const Result<ResumeResult> last = newest_in(folder, zero);
  ASSERT_TRUE(last.ok() && last->checkpoint);
  EXPECT_EQ(last->checkpoint->state.step, 4);
  EXPECT_FALSE(last->checkpoint->state.is_best);
}

// ---- a cut or a stop in the middle of something long ----

constexpr int64_t kStepsInAll = 4;  // two epochs: evaluations of steps 2 and 4

// metrics.jsonl, without what differs from run to run.
std::vector<Json> evaluations_in(const TemporaryFolder& folder) {
  std::vector<Json> found;
  std::istringstream lines(contents(folder.file("metrics.jsonl")));
  for (std::string line; std::getline(lines, line);) {
    Json record = Json::parse(line);
    record.erase("time");
    if (record.contains("evaluation")) found.push_back(std::move(record));
  }
  return found;
}

// Trains to the end, and must leave the evaluations and weights of an undisturbed run.
void expect_undisturbed_end(TestWorker& worker, const TemporaryFolder& folder) {
  const Outcome outcome = worker.run_alone(2);
  ASSERT_EQ(outcome.code, ExitCode::kDone) << outcome.message;
  EXPECT_TRUE(outcome.wait_reason.empty());
  PosixFileSystem fs;
  const TemporaryFolder other;
  TestWorker undisturbed(fs, other.path(), 0, 1);
  undisturbed.config.training.num_epochs = 2;
  ASSERT_EQ(undisturbed.run_alone(1).code, ExitCode::kDone);
  EXPECT_EQ(evaluations_in(folder), evaluations_in(other));
  EXPECT_EQ(evaluations_in(folder).size(), 2U);
  const Result<ResumeResult> mine = newest_in(folder, worker);
  const Result<ResumeResult> expected = newest_in(other, undisturbed);
  ASSERT_TRUE(mine.ok() && mine->checkpoint && expected.ok() && expected->checkpoint);
  EXPECT_EQ(mine->checkpoint->state.step, kStepsInAll);
  for (size_t i = 0; i < expected->checkpoint->model.size(); ++i) {
    EXPECT_TRUE(mine->checkpoint->model[i].tensor.equal(expected->checkpoint->model[i].tensor));
  }
}

// Evaluations that would never end if they were not abandoned: of the second step, and of the last one.
class LongEvaluation : public ::testing::TestWithParam<int64_t> {
 protected:
  LongEvaluation() : worker(fs, folder.path(), 0, 1, TestWorker::Agent::kOnLink) {
    worker.config.training.num_epochs = 2;
    worker.config.training.eval_every = GetParam() == 2 ? 1 : 2;
  }
  // `happens` comes in the middle of it.
  void evaluate_until(std::function<void()> happens) {
    worker.workload.in_evaluation = [happens = std::move(happens)](const EvaluationShard& shard) {
      happens();
      while (shard.goes_on()) std::this_thread::yield();
    };
  }

  PosixFileSystem fs;
  TemporaryFolder folder;
  TestWorker worker;
};

INSTANTIATE_TEST_SUITE_P(Trainer, LongEvaluation, ::testing::Values(2, 4));

TEST_P(LongEvaluation, is_left_when_the_group_is_cut_and_made_again_in_the_next_one) {
  evaluate_until([this] { worker.cut(1); });
  const Outcome outcome = worker.run_alone(1);
  EXPECT_EQ(outcome.wait_reason, kLeftCut);
  EXPECT_EQ(worker.step(), GetParam()) << "the state is kept";
  if (GetParam() == 2) return expect_undisturbed_end(worker, folder);
  EXPECT_EQ(worker.run_alone(2).code, ExitCode::kDone);
  EXPECT_EQ(evaluations_in(folder).size(), 1U);
}

TEST_P(LongEvaluation, is_left_when_all_are_to_leave_together) {
  evaluate_until([this] { worker.leave(1); });
  EXPECT_EQ(worker.run_alone(1).wait_reason, kLeftRegroup);
  EXPECT_EQ(worker.step(), GetParam());
  if (GetParam() == 2) return expect_undisturbed_end(worker, folder);
  EXPECT_EQ(worker.run_alone(2).code, ExitCode::kDone);
  EXPECT_EQ(evaluations_in(folder).size(), 1U);
}

// The checkpoint of its step is due, so it is written without the evaluation. The next group makes that.
TEST(Trainer, marks_the_best_checkpoint_that_was_written_before_its_evaluation) {
  PosixFileSystem fs;
  const TemporaryFolder folder;
  TestWorker worker(fs, folder.path(), 0, 1, TestWorker::Agent::kOnLink);
  worker.config.training.num_epochs = 3;
  worker.config.training.checkpoint_every = 2;
  worker.config.training.keep_last = 1;
  worker.workload.gets_worse = true;
  worker.workload.in_evaluation = [&](const EvaluationShard& shard) {
    worker.leave(1);
    while (shard.goes_on()) std::this_thread::yield();
  };
  EXPECT_EQ(worker.run_alone(1).wait_reason, kLeftRegroup);
  EXPECT_EQ(worker.run_alone(2).code, ExitCode::kDone);
  const Result<ResumeResult> best = load_checkpoint(fs, folder.file("step-00000002"));
  ASSERT_TRUE(best.ok() && best->checkpoint) << "the best one was removed";
  EXPECT_TRUE(best->checkpoint->state.is_best);
}

TEST_P(LongEvaluation, is_left_at_a_stop_with_a_checkpoint_of_its_step_and_made_up_on_resume) {
  evaluate_until([] { std::raise(SIGTERM); });
  const Outcome outcome = worker.run_alone(1);
  EXPECT_EQ(outcome.code, ExitCode::kTerminated) << outcome.message;
  EXPECT_TRUE(outcome.wait_reason.empty());
  EXPECT_TRUE(evaluations_in(folder).empty());
  const Result<ResumeResult> written = newest_in(folder, worker);
  ASSERT_TRUE(written.ok() && written->checkpoint);
  EXPECT_EQ(written->checkpoint->state.step, GetParam());
  EXPECT_FALSE(written->checkpoint->state.is_best);

  TestWorker resumed(fs, folder.path(), 0, 1);
  resumed.config = worker.config;
  if (GetParam() == 2) return expect_undisturbed_end(resumed, folder);
  EXPECT_EQ(resumed.run_alone(2).code, ExitCode::kDone);
  EXPECT_EQ(evaluations_in(folder).size(), 1U);
}

// Blocks what the writer's thread writes until it is released.
class HeldFileSystem final : public ForwardingFileSystem {
 public:
  using ForwardingFileSystem::ForwardingFileSystem;
  Result<size_t> write(FileHandle file, const void* data, size_t bytes) override {
    if (std::this_thread::get_id() != trainer_) {
      while (!let_go) std::this_thread::yield();
    }
    return ForwardingFileSystem::write(file, data, bytes);
  }

  std::atomic<bool> let_go = false;

 private:
  const std::thread::id trainer_ = std::this_thread::get_id();
};

TEST(Trainer, does_not_wait_for_a_slow_checkpoint_when_its_group_is_cut) {
  PosixFileSystem posix;
  HeldFileSystem fs(posix);
  const TemporaryFolder folder;
  TestWorker worker(fs, folder.path(), 0, 1, TestWorker::Agent::kOnLink);
  worker.config.training.num_epochs = 2;
  worker.config.training.checkpoint_every = 1;
  worker.workload.in_step = [&] { worker.cut(1); };  // while the first step's checkpoint is being written
  worker.config.training.eval_every = 0;
  EXPECT_EQ(worker.run_alone(1).wait_reason, kLeftCut);
  EXPECT_EQ(worker.step(), 2) << "the state is kept";
  fs.let_go = true;
  EXPECT_EQ(worker.run_alone(2).code, ExitCode::kDone);
  const Result<ResumeResult> found = newest_in(folder, worker);
  ASSERT_TRUE(found.ok() && found->checkpoint);
  EXPECT_EQ(found->checkpoint->state.step, kStepsInAll);
}

// This process stays rank 0: the write of the group before goes on beside the steps of the next one.
TEST(Trainer, trains_on_in_the_next_group_while_a_slow_checkpoint_is_being_written) {
  PosixFileSystem posix;
  HeldFileSystem fs(posix);
  const TemporaryFolder folder;
  TestWorker worker(fs, folder.path(), 0, 1, TestWorker::Agent::kOnLink);
  worker.config.training.num_epochs = 2;
  worker.config.training.checkpoint_every = 2;
  worker.config.training.eval_every = 0;
  worker.workload.step_of_hook = 2;
  worker.workload.in_step = [&] {
    worker.cut(1);
    worker.workload.step_of_hook = 3;
    worker.workload.in_step = [&] {
      EXPECT_FALSE(posix.stat(folder.file("step-00000002")).ok()) << "the step waited for the checkpoint";
      fs.let_go = true;
    };
    throw std::runtime_error("the group was lost");
  };
  EXPECT_EQ(worker.run_alone(1).wait_reason, kLeftCut);
  EXPECT_EQ(worker.step(), 2);
  EXPECT_EQ(worker.run_alone(2).code, ExitCode::kDone);
  const Result<ResumeResult> first = load_checkpoint(posix, folder.file("step-00000002"));
  ASSERT_TRUE(first.ok() && first->checkpoint);
  EXPECT_EQ(first->checkpoint->state.generation, 1U);
  const Result<ResumeResult> last = newest_in(folder, worker);
  ASSERT_TRUE(last.ok() && last->checkpoint);
  EXPECT_EQ(last->checkpoint->state.step, kStepsInAll);
  EXPECT_EQ(last->checkpoint->state.generation, 2U);
}

TEST(Trainer, goes_on_while_the_files_of_an_evaluation_are_being_written) {
  PosixFileSystem posix;
  HeldFileSystem fs(posix);
  const TemporaryFolder folder;
  TestWorker worker(fs, folder.path(), 0, 1);
  worker.config.training.num_epochs = 2;
  worker.workload.step_of_hook = 2;  // the step after the first evaluation
  bool went_on = false;
  worker.workload.in_step = [&] {
    went_on = !posix.stat(folder.file("epoch1.pth")).ok();
    fs.let_go = true;
  };
  EXPECT_EQ(worker.run_alone(1).code, ExitCode::kDone);
  EXPECT_TRUE(went_on);
  for (const char* const name : {"epoch1.pth", "epoch2.pth"}) EXPECT_TRUE(load_weights(posix, folder.file(name)).ok());
  EXPECT_EQ(load_checkpoint(posix, folder.file("step-00000002"))->checkpoint->state.is_best, true);
}

TEST(Trainer, does_not_wait_for_a_slow_file_when_its_group_is_cut_and_counts_the_evaluation) {
  PosixFileSystem posix;
  HeldFileSystem fs(posix);
  const TemporaryFolder folder;
  TestWorker worker(fs, folder.path(), 0, 1, TestWorker::Agent::kOnLink);
  worker.config.training.num_epochs = 2;
  // The second evaluation's file waits for the first one's, which is held.
  worker.workload.epoch_of_outputs = 2;
  worker.workload.in_outputs = [&] { worker.cut(1); };
  EXPECT_EQ(worker.run_alone(1).wait_reason, kLeftCut);
  EXPECT_EQ(evaluations_in(folder).size(), 2U);
  fs.let_go = true;
  EXPECT_EQ(worker.run_alone(2).code, ExitCode::kDone);
  EXPECT_EQ(worker.step(), kStepsInAll);
  EXPECT_TRUE(load_weights(posix, folder.file("epoch2.pth")).ok());
  EXPECT_EQ(evaluations_in(folder).size(), 2U);
}

// Calls on_tensors once the first tensors of a checkpoint have been read.
class ReadFileSystem final : public ForwardingFileSystem {
 public:
  ReadFileSystem(FileSystem& below, std::function<void()> on_tensors)
      : ForwardingFileSystem(below), on_tensors_(std::move(on_tensors)) {}
  Result<FileHandle> open_for_read(const std::string& path) override {
    is_tensors_ = path.ends_with(".safetensors");
    return ForwardingFileSystem::open_for_read(path);
  }
  Result<size_t> read(FileHandle file, void* data, size_t bytes) override {
    if (is_tensors_ && ++reads_of_tensors == 1) on_tensors_();
    return ForwardingFileSystem::read(file, data, bytes);
  }

  int reads_of_tensors = 0;

 private:
  const std::function<void()> on_tensors_;
  bool is_tensors_ = false;
};

// The checkpoint is whole: that reading it was broken off is no reason to skip it, now or later.
TEST(Trainer, reads_a_checkpoint_no_further_when_its_group_is_cut) {
  PosixFileSystem posix;
  const TemporaryFolder folder;
  TestWorker before(posix, folder.path(), 0, 1);
  ASSERT_EQ(before.run_alone(1).code, ExitCode::kDone);
  TestWorker* reader = nullptr;
  ReadFileSystem fs(posix, [&reader] { reader->cut(2); });
  TestWorker worker(fs, folder.path(), 0, 1, TestWorker::Agent::kOnLink);
  worker.config.training.num_epochs = 2;
  reader = &worker;
  EXPECT_EQ(worker.run_alone(2).wait_reason, kLeftCut);
  EXPECT_EQ(fs.reads_of_tensors, 1);
  testing::internal::CaptureStdout();
  EXPECT_EQ(worker.run_alone(3).code, ExitCode::kDone);
  EXPECT_EQ(worker.step(), kStepsInAll);
  const std::string said = testing::internal::GetCapturedStdout();
  EXPECT_NE(said.find("resumed from " + folder.path() + "/step-00000002"), std::string::npos) << said;
  EXPECT_EQ(said.find("passed over"), std::string::npos) << said;
}

// A rank that has made two steps in one group, and a fresh rank 0 on whose volume another group has written four; both
// go on in generation 8. What they print.
std::string go_on_in_8(const TemporaryFolder& volume, uint64_t group_in_memory, uint64_t group_on_volume,
                       const JobIdentity& job_in_memory = {}, const JobIdentity& job_on_volume = {}) {
  PosixFileSystem fs;
  const TemporaryFolder elsewhere;
  TestWorker survivor(fs, elsewhere.path(), 0, 1, job_in_memory);
  EXPECT_EQ(survivor.run_alone(group_in_memory).code, ExitCode::kDone);
  TestWorker lost(fs, volume.path(), 0, 1, job_on_volume);
  lost.config.training.num_epochs = 2;
  EXPECT_EQ(lost.run_alone(group_on_volume).code, ExitCode::kDone);

  TestWorker fresh(fs, volume.path(), 0, 2, job_in_memory);
  for (TestWorker* const worker : {&fresh, &survivor}) worker->config.training.num_epochs = 3;
  testing::internal::CaptureStdout();
  const auto outcomes = run_both({&fresh, &survivor}, 8);
  for (const Outcome& outcome : outcomes) EXPECT_EQ(outcome.code, ExitCode::kDone) << outcome.message;
  return testing::internal::GetCapturedStdout();
}

// Node 1 was cut off and keeps its state; the others went on without it, wrote a checkpoint, and are gone.
TEST(Trainer, goes_on_from_the_volume_when_all_that_is_in_memory_is_older) {
  const TemporaryFolder volume;
  const std::string said = go_on_in_8(volume, 5, 6);
  EXPECT_NE(said.find("resumed from " + volume.path() + "/step-00000004"), std::string::npos) << said;
  EXPECT_NE(said.find("no rank had anything newer than step 2"), std::string::npos) << said;
}

// The same when the checkpoint that is newer cannot be read now.
TEST(Trainer, does_not_go_on_from_memory_when_a_newer_checkpoint_cannot_be_read) {
  for (const char* const file : {"step-00000004/state.json", "step-00000004/model.safetensors"}) {
    PosixFileSystem posix;
    const TemporaryFolder volume;
    const TemporaryFolder elsewhere;
    TestWorker survivor(posix, elsewhere.path(), 0, 1);
    ASSERT_EQ(survivor.run_alone(5).code, ExitCode::kDone);
    TestWorker lost(posix, volume.path(), 0, 1);
    lost.config.training.num_epochs = 2;
    ASSERT_EQ(lost.run_alone(6).code, ExitCode::kDone);

    FaultFileSystem fs(posix, FaultFileSystem::Fault::kNone, 0);
    fs.hold_back(file);
    TestWorker fresh(fs, volume.path(), 0, 2);
    for (TestWorker* const worker : {&fresh, &survivor}) worker->config.training.num_epochs = 3;
    for (const Outcome& outcome : run_both({&fresh, &survivor}, 8)) {
      EXPECT_EQ(outcome.code, ExitCode::kCheckpoint) << outcome.message;
      EXPECT_THAT(outcome.message, HasSubstr("Input/output error"));
    }
    EXPECT_EQ(fs.calls(), 0);
    EXPECT_TRUE(posix.stat(volume.file("step-00000004")).ok());
  }
}

// The ranks of a live run ignore what a later start has written into its folder.
TEST(Trainer, does_not_look_at_the_volume_when_the_group_before_this_one_is_there) {
  const TemporaryFolder volume;
  const std::string said = go_on_in_8(volume, 7, 7);
  EXPECT_EQ(said.find("resumed from"), std::string::npos) << said;
}

// ---- a TrainJob that was made again ----

const JobIdentity kFirst{.name = "team-a/toy", .uid = "uid-1", .run = 100};
const JobIdentity kSecond{.name = "team-a/toy", .uid = "uid-2", .run = 200};

TEST(Trainer, prefers_what_its_ranks_hold_to_a_later_step_of_an_earlier_job) {
  const TemporaryFolder volume;
  const std::string said = go_on_in_8(volume, 5, 6, kSecond, kFirst);
  EXPECT_EQ(said.find("resumed from"), std::string::npos) << said;
  EXPECT_NE(go_on_in_8(TemporaryFolder(), 5, 6, kSecond, kSecond).find("resumed from"), std::string::npos);
}

// In generation 9 the first one has trained an epoch into `folder`.
void train_the_first(const TemporaryFolder& folder) {
  PosixFileSystem fs;
  TestWorker first(fs, folder.path(), 0, 1, kFirst);
  ASSERT_EQ(first.run_alone(9).code, ExitCode::kDone);
}

TEST(Trainer, goes_on_where_the_job_before_it_of_its_name_was) {
  const TemporaryFolder folder;
  train_the_first(folder);
  PosixFileSystem fs;
  TestWorker second(fs, folder.path(), 0, 1, kSecond);
  second.config.training.num_epochs = 2;
  testing::internal::CaptureStdout();
  const Outcome outcome = second.run_alone(1);
  const std::string said = testing::internal::GetCapturedStdout();
  EXPECT_EQ(outcome.code, ExitCode::kDone) << outcome.message;
  EXPECT_NE(said.find("step-00000002, which an earlier TrainJob of this name wrote"), std::string::npos) << said;
  const Result<ResumeResult> found = newest_in(folder, second);
  ASSERT_TRUE(found.ok() && found->checkpoint);
  const CheckpointState& state = found->checkpoint->state;
  EXPECT_EQ(state.step, 4);
  EXPECT_EQ(state.stamp(), (CheckpointStamp{.run = 200, .generation = 1}));
  EXPECT_EQ(state.job_uid, "uid-2");
}

TEST(Trainer, has_nothing_to_do_where_the_job_before_it_was_complete) {
  const TemporaryFolder folder;
  train_the_first(folder);
  PosixFileSystem fs;
  TestWorker second(fs, folder.path(), 0, 1, kSecond);
  testing::internal::CaptureStdout();
  const Outcome outcome = second.run_alone(1);
  const std::string said = testing::internal::GetCapturedStdout();
  EXPECT_EQ(outcome.code, ExitCode::kDone) << outcome.message;
  EXPECT_NE(said.find("already at step 2 of 2: nothing to do"), std::string::npos) << said;
  const Result<ResumeResult> found = newest_in(folder, second);
  ASSERT_TRUE(found.ok() && found->checkpoint);
  EXPECT_EQ(found->checkpoint->state.job_uid, "uid-1") << "it has written";
}

// Made in the same second, or after the API server's clock was set back.
TEST(Trainer, goes_on_above_a_job_before_it_whose_run_number_is_higher) {
  const TemporaryFolder folder;
  train_the_first(folder);
  PosixFileSystem fs;
  JobIdentity job = kSecond;
  job.run = 50;
  TestWorker second(fs, folder.path(), 0, 1, job);
  second.config.training.num_epochs = 2;
  const Outcome outcome = second.run_alone(1);
  EXPECT_EQ(outcome.code, ExitCode::kDone) << outcome.message;
  const Result<ResumeResult> found = newest_in(folder, second);
  ASSERT_TRUE(found.ok() && found->checkpoint);
  EXPECT_EQ(found->checkpoint->state.step, 4);
  EXPECT_EQ(found->checkpoint->state.stamp(), (CheckpointStamp{.run = 100, .generation = 10}));
}

// Of the same UID too: a TrainJob's flags may change while it is suspended.
TEST(Trainer, is_refused_by_checkpoints_of_other_flags_and_names_them) {
  const TemporaryFolder folder;
  train_the_first(folder);
  PosixFileSystem fs;
  for (const JobIdentity& job : {kFirst, kSecond}) {
    TestWorker changed(fs, folder.path(), 0, 1, job);
    changed.config.flags = {{.name = "lr", .value = "0.25", .identity = "0.25", .changes_maths = true}};
    const Outcome outcome = changed.run_alone(1);
    EXPECT_EQ(outcome.code, ExitCode::kUsage);
    EXPECT_EQ(outcome.message.find("ConfigurationChanged: "), 0U) << outcome.message;
    EXPECT_NE(outcome.message.find("--lr is 0.25 in this command and"), std::string::npos) << outcome.message;
    // … except with --resume, and then again from what it has written itself.
    changed.config.training.resume = folder.path() + "/step-00000002";
    changed.config.training.num_epochs = 2;
    EXPECT_EQ(changed.run_alone(10).code, ExitCode::kDone);
    EXPECT_EQ(newest_in(folder, changed)->checkpoint->state.step, 4);
    ASSERT_TRUE(remove_tree(fs, folder.path() + "/step-00000004").ok());
  }
}

TEST(Trainer, with_never_begins_anew_beside_what_the_job_before_it_wrote_and_goes_on_from_its_own) {
  const TemporaryFolder folder;
  train_the_first(folder);
  PosixFileSystem fs;
  JobIdentity job = kSecond;
  job.resume = ResumePolicy::kNever;
  const std::string moved = folder.path() + "/.stale-step-00000002-r200-g1";
  testing::internal::CaptureStdout();
  EXPECT_EQ(TestWorker(fs, folder.path(), 0, 1, job).run_alone(1).code, ExitCode::kDone);
  std::string said = testing::internal::GetCapturedStdout();
  EXPECT_NE(said.find("initialised from seed"), std::string::npos) << said;
  EXPECT_NE(said.find("step-00000002 aside: another run wrote it"), std::string::npos) << said;
  EXPECT_EQ(inspect_checkpoint(fs, folder.path() + "/step-00000002").state->job_uid, "uid-2");
  const Result<std::string> kept = read_file(fs, moved + "/state.json", 1 << 20);
  ASSERT_TRUE(kept.ok()) << kept.error().message;
  EXPECT_EQ(parse_checkpoint_state(*kept)->job_uid, "uid-1");

  TestWorker again(fs, folder.path(), 0, 1, job);
  again.config.training.num_epochs = 2;
  testing::internal::CaptureStdout();
  EXPECT_EQ(again.run_alone(2).code, ExitCode::kDone);
  said = testing::internal::GetCapturedStdout();
  EXPECT_NE(said.find("resumed from " + folder.path() + "/step-00000002"), std::string::npos) << said;
  EXPECT_EQ(said.find("earlier TrainJob"), std::string::npos) << said;
}

TEST(Trainer, with_never_renames_nothing_if_it_only_infers) {
  const TemporaryFolder folder;
  train_the_first(folder);
  PosixFileSystem fs;
  JobIdentity job = kSecond;
  job.resume = ResumePolicy::kNever;
  TestWorker reader(fs, folder.path(), 0, 1, job);
  reader.config.training.inference_only = true;
  EXPECT_EQ(reader.run_alone(1).code, ExitCode::kUsage);
  EXPECT_TRUE(fs.stat(folder.path() + "/step-00000002").ok());
}

// What a worker of `training` says that it starts from in `folder`, or its error.
std::string start_of(const TemporaryFolder& folder, uint64_t generation,
                     const std::function<void(TrainingOptions&)>& set) {
  PosixFileSystem fs;
  TestWorker worker(fs, folder.path(), 0, 1);
  set(worker.config.training);
  testing::internal::CaptureStdout();
  const Outcome outcome = worker.run_alone(generation);
  const std::string said = testing::internal::GetCapturedStdout();
  return outcome.code == ExitCode::kDone ? said : outcome.message;
}

TEST(Trainer, goes_on_with_weights_only_where_its_run_began_with_them) {
  const TemporaryFolder first;
  train_the_first(first);
  const TemporaryFolder folder;
  uint64_t generation = 0;
  const auto start = [&](const TemporaryFolder& position, const std::string& weights, int64_t epochs) {
    return start_of(position, ++generation, [&](TrainingOptions& training) {
      training.state_dict_path = weights;
      training.num_epochs = epochs;
    });
  };
  EXPECT_THAT(start(folder, first.path(), 1), HasSubstr("weights from " + first.path()));
  EXPECT_THAT(start(folder, first.path(), 2), HasSubstr("resumed from " + folder.path() + "/step-00000002"));
  EXPECT_THAT(start(folder, first.path() + "/step-00000002", 3),
              AllOf(HasSubstr("--state_dict_path " + first.path() + "/step-00000002: the run of " + folder.path() +
                              "/step-00000004 did not begin with these weights"),
                    HasSubstr("give another --train_dir, or leave --state_dict_path out")));
  EXPECT_THAT(start(folder, "", 3), HasSubstr("resumed from " + folder.path() + "/step-00000004"));
  EXPECT_THAT(start(folder, first.path(), 4), HasSubstr("resumed from " + folder.path() + "/step-00000006"));
  const TemporaryFolder of_seed;
  EXPECT_THAT(start(of_seed, "", 1), HasSubstr("initialised from seed"));
  EXPECT_THAT(start(of_seed, first.path(), 2), HasSubstr("did not begin with these weights"));
  // A checkpoint of an earlier version does not say what its run began with.
  PosixFileSystem fs;
  const std::string path = of_seed.path() + "/step-00000002/state.json";
  CheckpointState state = *parse_checkpoint_state(contents(path));
  state.progress["counters"].erase("weights_from");
  of_seed.write("step-00000002/state.json", dump_checkpoint_state(state));
  EXPECT_THAT(start(of_seed, first.path(), 2), HasSubstr("resumed from " + of_seed.path() + "/step-00000002"));
}

// A run that began with --resume is restarted with the same command.
class ResumedRun : public ::testing::Test {
 protected:
  void SetUp() override {
    train_the_first(first_);
    EXPECT_EQ(start(posix_, 1, 2).code, ExitCode::kDone);
    EXPECT_TRUE(posix_.stat(newest_).ok());
  }
  Outcome start(FileSystem& fs, uint64_t generation, int64_t epochs, const std::string& resume = "") {
    TestWorker worker(fs, folder_.path(), 0, 1);
    worker.config.training.resume = resume.empty() ? first_.path() : resume;
    worker.config.training.num_epochs = epochs;
    testing::internal::CaptureStdout();
    Outcome outcome = worker.run_alone(generation);
    said_ = testing::internal::GetCapturedStdout();
    return outcome;
  }
  void damage(const std::string& file) { folder_.write("step-00000004/" + file, "damaged"); }

  PosixFileSystem posix_;
  TemporaryFolder first_;
  TemporaryFolder folder_;
  std::string newest_ = folder_.file("step-00000004");
  std::string said_;
};

TEST_F(ResumedRun, goes_on_from_its_own_checkpoint) {
  EXPECT_EQ(start(posix_, 2, 3).code, ExitCode::kDone);
  EXPECT_THAT(said_, HasSubstr("resumed from " + newest_));
}

// Today's error of the volume may be gone tomorrow. To begin again would let retention remove the later work.
TEST_F(ResumedRun, does_not_begin_again_when_its_checkpoint_cannot_be_read) {
  for (const char* const file : {"step-00000004/state.json", "step-00000004/model.safetensors"}) {
    FaultFileSystem fs(posix_, FaultFileSystem::Fault::kNone, 0);
    fs.hold_back(file);
    const Outcome outcome = start(fs, 2, 4);
    EXPECT_EQ(outcome.code, ExitCode::kCheckpoint) << file;
    EXPECT_THAT(outcome.message, HasSubstr("Input/output error"));
    EXPECT_EQ(fs.calls(), 0) << "something was written or removed: " << testing::PrintToString(fs.log());
  }
  EXPECT_EQ(start(posix_, 3, 3).code, ExitCode::kDone);
  EXPECT_THAT(said_, HasSubstr("resumed from " + newest_));
}

TEST_F(ResumedRun, does_not_begin_again_when_all_its_checkpoints_are_damaged) {
  for (const char* const file : {"model.safetensors", "state.json"}) {
    damage(file);
    const Outcome outcome = start(posix_, 2, 4);
    EXPECT_EQ(outcome.code, ExitCode::kCheckpoint) << file;
    EXPECT_THAT(outcome.message, HasSubstr(newest_));
    EXPECT_TRUE(posix_.stat(newest_).ok());
  }
}

TEST_F(ResumedRun, does_not_go_on_from_a_checkpoint_of_an_earlier_run_in_its_folder) {
  // The newest began with step-00000004, which is of a run that began otherwise.
  EXPECT_EQ(start(posix_, 2, 3, newest_).code, ExitCode::kDone);
  folder_.write("step-00000006/model.safetensors", "damaged");
  EXPECT_EQ(start(posix_, 3, 4, newest_).code, ExitCode::kCheckpoint);
}

TEST_F(ResumedRun, begins_with_another_resume_where_no_checkpoint_is_in_doubt) {
  EXPECT_EQ(start(posix_, 2, 3, first_.path() + "/step-00000002").code, ExitCode::kDone);
  EXPECT_THAT(said_, HasSubstr("resumed from " + first_.path() + "/step-00000002"));
}

TEST(Trainer, evaluates_what_it_is_given_whatever_its_folder_holds) {
  const TemporaryFolder first;
  train_the_first(first);
  const TemporaryFolder folder;
  const auto resume = [&](TrainingOptions& training) { training.resume = first.path(); };
  EXPECT_THAT(start_of(folder, 10,
                       [&](TrainingOptions& training) {
                         resume(training);
                         training.num_epochs = 2;
                       }),
              HasSubstr("resumed from " + first.path()));
  EXPECT_THAT(start_of(folder, 11, [](TrainingOptions& training) { training.inference_only = true; }),
              HasSubstr("resumed from " + folder.path() + "/step-00000004"));
  EXPECT_THAT(start_of(folder, 12,
                       [&](TrainingOptions& training) {
                         resume(training);
                         training.inference_only = true;
                       }),
              HasSubstr("resumed from " + first.path() + "/step-00000002"));
  EXPECT_THAT(start_of(folder, 13,
                       [&](TrainingOptions& training) {
                         training.state_dict_path = first.path();
                         training.inference_only = true;
                       }),
              HasSubstr("weights from " + first.path()));
}

// A rank that is no longer rank 0 has closed its files: two writers in a folder would use the same file names.
TEST(Trainer, leaves_the_folder_to_the_new_rank_0) {
  const TemporaryFolder old_folder;
  const TemporaryFolder new_folder;
  PosixFileSystem fs;
  TestWorker old_zero(fs, old_folder.path(), 0, 1);
  ASSERT_EQ(old_zero.run_alone(1).code, ExitCode::kDone);
  TestWorker new_zero(fs, new_folder.path(), 0, 2);
  old_zero.config.training.num_epochs = new_zero.config.training.num_epochs = 2;
  for (const Outcome& outcome : run_both({&new_zero, &old_zero}, 2)) EXPECT_EQ(outcome.code, ExitCode::kDone);
  EXPECT_TRUE(load_checkpoint(fs, new_folder.path() + "/step-00000004").ok());
  EXPECT_FALSE(load_checkpoint(fs, old_folder.path() + "/step-00000004").ok());
  EXPECT_EQ(contents(old_folder.file("metrics.jsonl")).find("\"step\":4"), std::string::npos);
}

// The disk is full while the group forms anew: the state in memory goes on, and the next checkpoint is written, and so
// are the lines of all steps and evaluations until then, of which there are more than the journal holds.
TEST(Trainer, goes_on_without_its_folder_when_the_state_is_in_memory) {
  const TemporaryFolder first_folder;
  const TemporaryFolder second_folder;
  PosixFileSystem posix;
  TestWorker survivor(posix, first_folder.path(), 0, 1);
  ASSERT_EQ(survivor.run_alone(1).code, ExitCode::kDone);
  FaultFileSystem full(posix, FaultFileSystem::Fault::kFailOnce, 1, ENOSPC);
  const std::string made_later = second_folder.path() + "/run";
  TestWorker successor(full, made_later, 0, 2);
  for (TestWorker* const worker : {&successor, &survivor}) {
    worker->config.training.num_epochs = 6;
    worker->config.training.log_every = 1;
    worker->workload.gets_worse = true;  // there is no checkpoint before the last
  }
  for (const Outcome& outcome : run_both({&successor, &survivor}, 2)) {
    EXPECT_EQ(outcome.code, ExitCode::kDone) << outcome.message;
  }
  EXPECT_EQ(full.failures(), 1);
  EXPECT_EQ(full.log().front(), "mkdir run");
  const Result<ResumeResult> found = load_newest_checkpoint(posix, made_later, successor.identity());
  ASSERT_TRUE(found.ok() && found->checkpoint);
  EXPECT_EQ(found->checkpoint->state.step, 12);
  EXPECT_EQ(steps_in(made_later + "/metrics.jsonl"),
            (std::vector<std::string>{"1", "2", "2e", "3", "4", "4e", "5", "6", "6e", "7", "8", "8e", "9", "10", "10e",
                                      "11", "12", "12e"}));
  const std::string log = contents(made_later + "/log.txt");
  EXPECT_EQ(std::count(log.begin(), log.end(), '\n'), 1 + 6) << log;
}

// An old rank 0 that was cut off is started again beside its successor, by an agent that was cut off with it; its peer
// has kept the state. What it opens it would replace.
TEST(Trainer, replaces_no_files_of_a_newer_rank_0) {
  const TemporaryFolder folder;
  const TemporaryFolder elsewhere;
  PosixFileSystem fs;
  TestWorker survivor(fs, elsewhere.path(), 0, 1);
  ASSERT_EQ(survivor.run_alone(1).code, ExitCode::kDone);
  TestWorker newer(fs, folder.path(), 0, 1);
  newer.config.training.num_epochs = 3;
  ASSERT_EQ(newer.run_alone(9).code, ExitCode::kDone);
  const std::string lines = contents(folder.file("metrics.jsonl"));

  TestWorker old(fs, folder.path(), 0, 2);
  for (TestWorker* const worker : {&old, &survivor}) worker->config.training.num_epochs = 2;
  for (const Outcome& outcome : run_both({&old, &survivor}, 2)) {
    EXPECT_EQ(outcome.code, ExitCode::kCheckpoint) << outcome.message;
  }
  EXPECT_EQ(contents(folder.file("metrics.jsonl")), lines);
  EXPECT_EQ(newest_in(folder, newer)->checkpoint->state.step, 6);
}

// Whatever call fails for it: the lines of metrics.jsonl are for people to watch, and no reason to lose a step.
TEST(Trainer, goes_on_when_its_lines_cannot_be_appended) {
  class NoAppends final : public ForwardingFileSystem {
   public:
    using ForwardingFileSystem::ForwardingFileSystem;
    Result<FileHandle> open_for_append(const std::string& path, Append append) override {
      Result<FileHandle> file = ForwardingFileSystem::open_for_append(path, append);
      const std::lock_guard lock(mutex_);
      if (file.ok()) appended_.insert(file->descriptor);
      return file;
    }
    Result<size_t> write(FileHandle file, const void* data, size_t bytes) override {
      const std::lock_guard lock(mutex_);
      if (appended_.contains(file.descriptor)) return error_of_errno(EIO, "write", "the file");
      return ForwardingFileSystem::write(file, data, bytes);
    }

   private:
    std::mutex mutex_;
    std::set<int> appended_;  // stay open to the end of the run
  };
  const TemporaryFolder folder;
  PosixFileSystem posix;
  NoAppends fs(posix);
  TestWorker worker(fs, folder.path(), 0, 1);
  testing::internal::CaptureStdout();
  const Outcome outcome = worker.run_alone(1);
  EXPECT_THAT(testing::internal::GetCapturedStdout(), HasSubstr("Input/output error"));
  EXPECT_EQ(outcome.code, ExitCode::kDone) << outcome.message;
  EXPECT_EQ(newest_in(folder, worker)->checkpoint->state.step, 2);
}

TEST(Trainer, ends_when_a_run_that_starts_cannot_write) {
  const TemporaryFolder folder;
  PosixFileSystem posix;
  FaultFileSystem full(posix, FaultFileSystem::Fault::kFailOnce, 1, ENOSPC);
  TestWorker worker(full, folder.path(), 0, 1);
  EXPECT_EQ(worker.run_alone(1).code, ExitCode::kCheckpoint);
}

// Node 0 was lost right after an evaluation: its successor writes the results, and the weights that were evaluated.
TEST(Trainer, writes_the_weights_of_an_evaluation_that_its_predecessor_did_not) {
  const TemporaryFolder first_folder;
  const TemporaryFolder second_folder;
  PosixFileSystem fs;
  TestWorker survivor(fs, first_folder.path(), 0, 1);
  ASSERT_EQ(survivor.run_alone(1).code, ExitCode::kDone);
  const Result<ResumeResult> evaluated = load_newest_checkpoint(fs, first_folder.path(), survivor.identity());
  ASSERT_TRUE(evaluated.ok() && evaluated->checkpoint);

  TestWorker successor(fs, second_folder.path(), 0, 2);
  survivor.config.training.num_epochs = successor.config.training.num_epochs = 2;
  for (const Outcome& outcome : run_both({&successor, &survivor}, 2)) {
    EXPECT_EQ(outcome.code, ExitCode::kDone) << outcome.message;
  }
  const Result<NamedTensors> written = load_weights(fs, second_folder.file("epoch1.pth"));
  ASSERT_TRUE(written.ok()) << written.error().message;
  const NamedTensors& averages = evaluated->checkpoint->ema.front().second;
  const NamedTensors& raw = evaluated->checkpoint->model;
  ASSERT_EQ(written->size(), averages.size() + 1) << "the buffer, which has no average";
  for (const NamedTensor& tensor : *written) {
    if (tensor.name == survivor.workload.buffers()[0].name) continue;
    const auto same_name = [&](const NamedTensor& other) { return other.name == tensor.name; };
    const auto average = std::find_if(averages.begin(), averages.end(), same_name);
    ASSERT_NE(average, averages.end()) << tensor.name;
    EXPECT_TRUE(tensor.tensor.equal(average->tensor)) << tensor.name;
    EXPECT_FALSE(tensor.tensor.equal(std::find_if(raw.begin(), raw.end(), same_name)->tensor)) << tensor.name;
  }
  EXPECT_TRUE(load_weights(fs, second_folder.file("epoch2.pth")).ok());
}

// Rank 0 was lost when the line of its evaluation was written and the file was not: its successor writes the file
// again.
TEST(Trainer, writes_the_files_of_an_evaluation_again_whose_writer_was_lost) {
  const TemporaryFolder folder;
  PosixFileSystem fs;
  TestWorker lost(fs, folder.path(), 0, 2);
  TestWorker survivor(fs, folder.path(), 1, 2);
  for (const Outcome& outcome : run_both({&lost, &survivor}, 1)) ASSERT_EQ(outcome.code, ExitCode::kDone);
  const Result<NamedTensors> before = load_weights(fs, folder.file("epoch1.pth"));
  ASSERT_TRUE(before.ok());
  ASSERT_TRUE(fs.remove_file(folder.file("epoch1.pth")).ok());
  ASSERT_EQ(evaluations_in(folder).size(), 1U);

  TestWorker successor(fs, folder.path(), 0, 2);
  for (const Outcome& outcome : run_both({&successor, &survivor}, 2)) EXPECT_EQ(outcome.code, ExitCode::kDone);
  const Result<NamedTensors> again = load_weights(fs, folder.file("epoch1.pth"));
  ASSERT_TRUE(again.ok()) << again.error().message;
  for (size_t i = 0; i < before->size(); ++i) EXPECT_TRUE((*again)[i].tensor.equal((*before)[i].tensor));
  EXPECT_EQ(evaluations_in(folder).size(), 1U);
}

// Remembers which of its evaluations ended an epoch.
class EpochToy final : public ToyWorkload {
 public:
  EpochToy() : ToyWorkload(even_toy(8)) {}
  std::vector<std::string> outputs(const EvaluationReport& report) override {
    ended.emplace_back(report.epoch, report.ends_epoch);
    return {};
  }

  std::vector<std::pair<int64_t, bool>> ended;
};

TEST(Trainer, tells_an_evaluation_in_the_middle_of_an_epoch_from_that_at_its_end) {
  PosixFileSystem fs;
  const TemporaryFolder folder;
  WorkerOf<EpochToy> worker(fs, folder.path(), 0, 1);
  worker.config.training.num_epochs = 2;
  worker.config.training.max_steps = 3;  // of two steps each
  EXPECT_EQ(worker.run_alone(1).code, ExitCode::kDone);
  EXPECT_EQ(worker.workload.ended, (std::vector<std::pair<int64_t, bool>>{{1, true}, {1, false}}));
}

// Each rank adds a line to a list, which is a file as it is; nobody can make it again. The lines of the first
// evaluation differ from those of later ones.
class ListingToy final : public ToyWorkload {
 public:
  ListingToy() : ToyWorkload(even_toy(8)) {}
  Result<std::vector<MetricSum>> evaluate(const EvaluationShard& shard) override {
    shard.give_part("list.txt", "rank " + std::to_string(shard.rank) + (evaluations_++ > 0 ? " again" : "") + "\n");
    return Workload::evaluate(shard);
  }
  std::vector<std::string> outputs(const EvaluationReport& report) override {
    if (in_second_outputs && report.epoch == 2) std::exchange(in_second_outputs, nullptr)();
    return {"list.txt"};
  }

  std::function<void()> in_second_outputs;  // once

 private:
  int evaluations_ = 0;
};

// The second evaluation's file waits for the first one's, which is held.
TEST(Trainer, writes_what_the_ranks_gave_when_its_group_is_cut_while_a_file_is_slow) {
  PosixFileSystem posix;
  HeldFileSystem fs(posix);
  const TemporaryFolder folder;
  WorkerOf<ListingToy> worker(fs, folder.path(), 0, 1, WorkerOf<ListingToy>::Agent::kOnLink);
  worker.config.training.num_epochs = 2;
  worker.workload.in_second_outputs = [&] { worker.cut(1); };
  EXPECT_EQ(worker.run_alone(1).wait_reason, kLeftCut);
  fs.let_go = true;
  EXPECT_EQ(worker.run_alone(2).code, ExitCode::kDone);
  EXPECT_EQ(contents(folder.file("list.txt")), "rank 0 again\n");
}

TEST(Trainer, writes_what_the_ranks_gave_and_nothing_in_its_place_when_it_is_lost) {
  const TemporaryFolder folder;
  PosixFileSystem fs;
  const auto run = [&](std::array<WorkerOf<ListingToy>*, 2> workers, uint64_t generation) {
    const StoreHandle store(c10::make_intrusive<c10d::HashStore>());
    on_ranks(
        2,
        [&](ProcessGroup& group) {
          const auto rank = static_cast<size_t>(group.rank());
          EXPECT_EQ(workers[rank]->run(group, store).code, ExitCode::kDone);
        },
        at::kCPU, generation);
  };
  WorkerOf<ListingToy> first(fs, folder.path(), 0, 2);
  WorkerOf<ListingToy> survivor(fs, folder.path(), 1, 2);
  run({&first, &survivor}, 1);
  EXPECT_EQ(contents(folder.file("list.txt")), "rank 0\nrank 1\n");
  ASSERT_TRUE(fs.remove_file(folder.file("list.txt")).ok());
  WorkerOf<ListingToy> successor(fs, folder.path(), 0, 2);
  run({&successor, &survivor}, 2);
  EXPECT_FALSE(fs.stat(folder.file("list.txt")).ok());
}

// The gradients of the last step are being summed when the group is cut: its figures are garbage, and nothing throws.
TEST(Trainer, never_writes_the_state_of_one_step_as_that_of_the_next_which_was_cut) {
  const TemporaryFolder folder;
  PosixFileSystem fs;
  on_device_ranks(1, HostWaits::kForNothing, [&](ProcessGroup& group, AsynchronousDevice& device) {
    TestWorker worker(fs, folder.path(), 0, 1, &device);
    device.before_launch([&](int64_t) {
      if (worker.workload.batches < 2) return;
      worker.gate().shut();
      device.abort();
    });
    const StoreHandle store(c10::make_intrusive<c10d::HashStore>());
    const Outcome outcome = worker.run(group, store);
    EXPECT_EQ(outcome.code, ExitCode::kPeerLost) << outcome.message;
    const Result<ResumeResult> found = newest_in(folder, worker);
    ASSERT_TRUE(found.ok());
    EXPECT_FALSE(found->checkpoint) << "the state of step " << found->checkpoint->state.step;
    EXPECT_EQ(contents(folder.file("metrics.jsonl")).find("\"step\":2"), std::string::npos);
  });
}

// The abort has shut the gate before the generation that opens it begins.
TEST(Trainer, commits_nothing_in_a_group_that_was_cut_while_it_formed) {
  const TemporaryFolder folder;
  PosixFileSystem fs;
  on_device_ranks(1, HostWaits::kForNothing, [&](ProcessGroup& group, AsynchronousDevice& device) {
    TestWorker worker(fs, folder.path(), 0, 1, &device);
    group.options().abort->add_action([&] { worker.gate().shut(); });
    group.options().abort->fire();
    const StoreHandle store(c10::make_intrusive<c10d::HashStore>());
    EXPECT_EQ(worker.run(group, store).code, ExitCode::kPeerLost);
    EXPECT_EQ(worker.step(), 0);
    EXPECT_EQ(worker.gate().pass(torch::zeros({1})).skip.item<float>(), 1.0F) << "the gate is open";
  });
}

// Destructors give memory back to the device, which throws again: the process would end by SIGABRT.
TEST(Trainer, says_that_its_device_is_broken_before_it_lets_go_of_anything) {
  const TemporaryFolder folder;
  PosixFileSystem fs;
  // In a group: one rank alone has no buckets.
  on_device_ranks(1, HostWaits::kForNothing, [&](ProcessGroup& group, AsynchronousDevice& device) {
    TestWorker worker(fs, folder.path(), 0, 1, &device);
    worker.workload.breaks_device_at_batch = 2;
    const auto holds_its_buckets = [&] { return parameters_of(worker.workload)[0].tensor.grad().defined(); };
    int said = 0;
    worker.on_device_fault = [&](const Failure& fault) {
      ++said;
      EXPECT_EQ(fault.code, ExitCode::kDeviceFault);
      EXPECT_EQ(fault.message, "at step 2: CUDA error: an illegal memory access");
      EXPECT_TRUE(holds_its_buckets());
    };
    const StoreHandle store(c10::make_intrusive<c10d::HashStore>());
    EXPECT_EQ(worker.run(group, store).code, ExitCode::kDeviceFault);
    EXPECT_EQ(said, 1);
    EXPECT_FALSE(holds_its_buckets());
  });
}

// Who leaves takes the group down, and its peers' devices may still work with it.
TEST(Trainer, waits_for_its_device_before_it_leaves_according_to_plan) {
  class WatchedStream final : public DeviceStream {
   public:
    [[nodiscard]] int64_t lag() const override { return 0; }
    void wait() override { ++waits; }
    [[nodiscard]] Reading read_later(const at::Tensor& tensor) override {
      waits = 0;  // since the newest step
      return [tensor] { return tensor; };
    }
    int waits = 0;
  };
  std::array<int, 2> ends{};
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()), 0);
  LineChannel agent(ends[1]);
  BeatPage page;
  AgentSession session(ends[0], 0, page, [] { return false; });
  ASSERT_TRUE(agent.write_line(encode(AgentMessage(LeaveTogether{.generation = 1, .leaving_code = 0}))).ok());
  while (!session.leave_together(1)) std::this_thread::yield();

  const TemporaryFolder folder;
  PosixFileSystem fs;
  WatchedStream stream;
  TestWorker worker(fs, folder.path(), 0, 1, &stream, &session);
  const Outcome outcome = worker.run_alone(1);
  EXPECT_EQ(outcome.wait_reason, kLeftRegroup) << outcome.message;
  EXPECT_EQ(worker.step(), 1);
  EXPECT_GT(stream.waits, 0);
}

}  // namespace
}  // namespace lockstep
