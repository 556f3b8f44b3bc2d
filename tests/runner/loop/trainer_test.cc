#include "runner/loop/trainer.h"

#include <c10/util/Exception.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <memory>
#include <stdexcept>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "runner/base/line_channel.h"
#include "runner/checkpoint/reader.h"
#include "runner/contract/beat_page.h"
#include "runner/dist/device_stream.h"
#include "tests/runner/formats/fault_file_system.h"
#include "tests/runner/loop/line_workload.h"
#include "tests/runner/support/asynchronous_device.h"
#include "tests/runner/support/ranks_as_threads.h"
#include "tests/support/temporary_folder.h"

namespace lockstep {
namespace {

// The score is the number of evaluations, or less than nothing of it, and the guide's weight file is named after its
// epoch.
class ScoredLine final : public LineWorkload {
 public:
  using LineWorkload::LineWorkload;
  std::vector<MetricSum> evaluate(const EvaluationShard& shard) override {
    const bool first = shard.rank == 0;
    const int score = gets_worse ? -++evaluations_ : ++evaluations_;
    return {{.name = "score", .sum = first ? static_cast<double>(score) : 0.0, .count = first ? 1.0 : 0.0}};
  }
  [[nodiscard]] std::string best_metric() const override { return "score"; }
  std::string reference_weight_file(const EvaluationReport& report) override {
    if (std::exchange(breaks_after_evaluation, false))
      throw std::runtime_error("the sums came, and nothing after them");
    return "epoch" + std::to_string(report.epoch) + ".pth";
  }
  std::unique_ptr<MicroBatch> make_batch(const MicroBatchSpec& spec) override {
    ++batches;
    return LineWorkload::make_batch(spec);
  }
  at::Tensor loss_sum(const MicroBatch& batch) override {
    if (batches == breaks_device_at_batch) {
      throw c10::AcceleratorError({__func__, __FILE__, __LINE__}, 700, "CUDA error: an illegal memory access");
    }
    return LineWorkload::loss_sum(batch);
  }

  int batches = 0;                  // made so far
  int breaks_device_at_batch = -1;  // the device fails in its forward
  bool gets_worse = false;
  bool breaks_after_evaluation = false;

 private:
  int evaluations_ = 0;
};

// A worker without its process: 8 samples in batches of 4 are two steps an epoch, and each epoch is evaluated.
class TestWorker {
 public:
  TestWorker(FileSystem& fs, const std::string& folder, int rank, int world_size, DeviceStream* device = nullptr,
             AgentSession* agent = nullptr)
      : workload(8), fs_(fs) {
    config.training.batch_size = 4;
    config.training.num_epochs = 1;
    config.training.eval_every = 1;
    config.training.checkpoint_every = 0;
    config.training.ema_decay = 0.5;
    config.training.tensorboard = false;
    reporter_ = std::make_unique<Reporter>(Reporter::Options{
        .config = &config, .world = world_of(rank, world_size), .clock = &clock_, .page = &page_, .folder = folder});
    trainer_ = std::make_unique<Trainer>(Trainer::Parts{.config = config,
                                                        .workload = workload,
                                                        .fs = fs_,
                                                        .signals = signals_,
                                                        .clock = clock_,
                                                        .reporter = *reporter_,
                                                        .faults = faults_,
                                                        .page = page_,
                                                        .agent = agent,
                                                        .device = at::kCPU,
                                                        .stream = device != nullptr ? *device : *cpu_,
                                                        .precision = {},
                                                        .folder = folder,
                                                        .locks_folder = false,
                                                        .on_device_fault = [this](const Failure& fault) {
                                                          if (on_device_fault) on_device_fault(fault);
                                                        }});
  }

  Outcome run(ProcessGroup& group, const StoreHandle& store, uint64_t generation) {
    reporter_->set_world(group.options().world);
    return trainer_->run_generation(group, store, {.generation = generation});
  }
  Outcome run_alone(uint64_t generation) {
    const StoreHandle store(c10::make_intrusive<c10d::HashStore>());
    const auto group = ProcessGroup::solo({.world = world_of(0, 1), .network_interface = ""});
    return run(*group, store, generation);
  }
  [[nodiscard]] RunIdentity identity() const {
    return {.job_uid = "", .config_hash = config.config_hash(), .workload = workload.name()};
  }

  [[nodiscard]] CommitGate& gate() { return trainer_->gate(); }
  [[nodiscard]] int64_t step() const { return trainer_->step(); }

  RunConfig config;
  ScoredLine workload;
  std::function<void(const Failure&)> on_device_fault;

 private:
  const std::unique_ptr<DeviceStream> cpu_ = make_device_stream(at::kCPU);
  FileSystem& fs_;
  StopSignals signals_;
  InjectedFaults faults_;
  BeatPage page_;
  PhaseClock clock_{Phase::kStartup, std::chrono::steady_clock::now()};
  std::unique_ptr<Reporter> reporter_;
  std::unique_ptr<Trainer> trainer_;
};

// A step that was given up takes the step on the page back. The agent would take the time of that for a commit's.
TEST(Reporter, shows_a_commit_only_where_the_step_goes_on) {
  const RunConfig config;
  PhaseClock clock(Phase::kStartup, std::chrono::steady_clock::now());
  BeatPage page;
  Reporter reporter({.config = &config, .world = world_of(0, 1), .clock = &clock, .page = &page});
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

// Both ranks train in one group; what each ends with.
std::array<Outcome, 2> run_both(std::array<TestWorker*, 2> workers, uint64_t generation) {
  const StoreHandle store(c10::make_intrusive<c10d::HashStore>());
  std::array<Outcome, 2> outcomes;
  on_ranks(2, [&](ProcessGroup& group) {
    const auto rank = static_cast<size_t>(group.rank());
    outcomes[rank] = workers[rank]->run(group, store, generation);
  });
  return outcomes;
}

// Node 0 was lost with the last checkpoint unwritten: who takes its place finds a run that is finished, and writes it.
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

// … and when it is the survivor that becomes rank 0, it does not think that it had written it itself.
TEST(Trainer, writes_the_last_checkpoint_when_it_becomes_rank_0_at_the_end) {
  const TemporaryFolder folder;
  PosixFileSystem fs;
  TestWorker lost(fs, folder.path(), 0, 2);
  TestWorker survivor(fs, folder.path(), 1, 2);
  for (const Outcome& outcome : run_both({&lost, &survivor}, 1)) ASSERT_EQ(outcome.code, ExitCode::kDone);
  ASSERT_TRUE(remove_tree(fs, folder.path() + "/step-00000002").ok());
  EXPECT_EQ(survivor.run_alone(2).code, ExitCode::kDone);
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
  zero.workload.breaks_after_evaluation = true;
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

// A rank that has made two steps in one group, and a fresh rank 0 on whose volume another group has written four; both
// go on in generation 8. What they print.
std::string go_on_in_8(const TemporaryFolder& volume, uint64_t group_in_memory, uint64_t group_on_volume) {
  PosixFileSystem fs;
  const TemporaryFolder elsewhere;
  TestWorker survivor(fs, elsewhere.path(), 0, 1);
  EXPECT_EQ(survivor.run_alone(group_in_memory).code, ExitCode::kDone);
  TestWorker lost(fs, volume.path(), 0, 1);
  lost.config.training.num_epochs = 2;
  EXPECT_EQ(lost.run_alone(group_on_volume).code, ExitCode::kDone);

  TestWorker fresh(fs, volume.path(), 0, 2);
  for (TestWorker* const worker : {&fresh, &survivor}) worker->config.training.num_epochs = 3;
  testing::internal::CaptureStdout();
  const auto outcomes = run_both({&fresh, &survivor}, 8);
  for (const Outcome& outcome : outcomes) EXPECT_EQ(outcome.code, ExitCode::kDone) << outcome.message;
  return testing::internal::GetCapturedStdout();
}

// Node 1 was cut off and keeps its state; the others went on without it, wrote their steps down, and are gone.
TEST(Trainer, goes_on_from_the_volume_when_all_that_is_in_memory_is_older) {
  const TemporaryFolder volume;
  const std::string said = go_on_in_8(volume, 5, 6);
  EXPECT_NE(said.find("resumed from " + volume.path() + "/step-00000004"), std::string::npos) << said;
  EXPECT_NE(said.find("no rank had anything newer than step 2"), std::string::npos) << said;
}

// What a later start has written into the folder of a live run is nothing to its ranks.
TEST(Trainer, does_not_look_at_the_volume_when_the_group_before_this_one_is_there) {
  const TemporaryFolder volume;
  const std::string said = go_on_in_8(volume, 7, 7);
  EXPECT_EQ(said.find("resumed from"), std::string::npos) << said;
}

// A rank 0 that is not rank 0 any more has closed its files: two writers in a folder would write one name.
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

// The disk is full while the group forms anew: the state in memory goes on, and the next checkpoint is written.
TEST(Trainer, goes_on_without_its_folder_when_the_state_is_in_memory) {
  const TemporaryFolder first_folder;
  const TemporaryFolder second_folder;
  PosixFileSystem posix;
  TestWorker survivor(posix, first_folder.path(), 0, 1);
  ASSERT_EQ(survivor.run_alone(1).code, ExitCode::kDone);
  FaultFileSystem full(posix, FaultFileSystem::Fault::kFailOnce, 1, ENOSPC);
  const std::string made_later = second_folder.path() + "/run";
  TestWorker successor(full, made_later, 0, 2);
  survivor.config.training.num_epochs = successor.config.training.num_epochs = 2;
  for (const Outcome& outcome : run_both({&successor, &survivor}, 2)) {
    EXPECT_EQ(outcome.code, ExitCode::kDone) << outcome.message;
  }
  EXPECT_EQ(full.failures(), 1);
  EXPECT_EQ(full.log().front(), "mkdir run");
  const Result<ResumeResult> found = load_newest_checkpoint(posix, made_later, successor.identity());
  ASSERT_TRUE(found.ok() && found->checkpoint);
  EXPECT_EQ(found->checkpoint->state.step, 4);
  EXPECT_NE(contents(made_later + "/metrics.jsonl").find("\"step\":4"), std::string::npos);
}

TEST(Trainer, ends_when_a_run_that_starts_cannot_write) {
  const TemporaryFolder folder;
  PosixFileSystem posix;
  FaultFileSystem full(posix, FaultFileSystem::Fault::kFailOnce, 1, ENOSPC);
  TestWorker worker(full, folder.path(), 0, 1);
  EXPECT_EQ(worker.run_alone(1).code, ExitCode::kCheckpoint);
}

// Node 0 was lost right after an evaluation: who takes its place writes down what it had found, and the weights that it
// had looked at.
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
  ASSERT_EQ(written->size(), averages.size());
  for (const NamedTensor& tensor : *written) {
    const auto same_name = [&](const NamedTensor& other) { return other.name == tensor.name; };
    const auto average = std::find_if(averages.begin(), averages.end(), same_name);
    ASSERT_NE(average, averages.end()) << tensor.name;
    EXPECT_TRUE(tensor.tensor.equal(average->tensor)) << tensor.name;
    EXPECT_FALSE(tensor.tensor.equal(std::find_if(raw.begin(), raw.end(), same_name)->tensor)) << tensor.name;
  }
  EXPECT_TRUE(load_weights(fs, second_folder.file("epoch2.pth")).ok());
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
    const Outcome outcome = worker.run(group, store, 1);
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
    group.options().abort->also([&] { worker.gate().shut(); });
    group.options().abort->fire();
    const StoreHandle store(c10::make_intrusive<c10d::HashStore>());
    EXPECT_EQ(worker.run(group, store, 1).code, ExitCode::kPeerLost);
    EXPECT_EQ(worker.step(), 0);
    EXPECT_EQ(worker.gate().pass(torch::zeros({1})).skip.item<float>(), 1.0F) << "the gate is open";
  });
}

// Destructors give memory back to the device, which throws again: the process would end by SIGABRT.
TEST(Trainer, says_that_its_device_is_broken_before_it_lets_go_of_anything) {
  const TemporaryFolder folder;
  PosixFileSystem fs;
  TestWorker worker(fs, folder.path(), 0, 1);
  worker.workload.breaks_device_at_batch = 2;
  const auto holds_its_buckets = [&] { return worker.workload.parameters()[0].tensor.grad().defined(); };
  int said = 0;
  worker.on_device_fault = [&](const Failure& fault) {
    ++said;
    EXPECT_EQ(fault.code, ExitCode::kDeviceFault);
    EXPECT_EQ(fault.message, "at step 2: CUDA error: an illegal memory access");
    EXPECT_TRUE(holds_its_buckets());
  };
  EXPECT_EQ(worker.run_alone(1).code, ExitCode::kDeviceFault);
  EXPECT_EQ(said, 1);
  EXPECT_FALSE(holds_its_buckets());
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
  InjectedFaults faults;
  AgentSession session(ends[0], 0, page, faults, [] { return false; });
  ASSERT_TRUE(agent.write_line(encode(AgentMessage(LeaveTogether{.generation = 1, .leaving_code = 0}))).ok());
  while (!session.leave_together(1)) std::this_thread::yield();

  const TemporaryFolder folder;
  PosixFileSystem fs;
  WatchedStream stream;
  TestWorker worker(fs, folder.path(), 0, 1, &stream, &session);
  const Outcome outcome = worker.run_alone(1);
  EXPECT_EQ(outcome.waits_because, kLeftRegroup) << outcome.message;
  EXPECT_EQ(worker.step(), 1);
  EXPECT_GT(stream.waits, 0);
}

}  // namespace
}  // namespace lockstep
