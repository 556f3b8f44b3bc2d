#include "runner/loop/trainer.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <functional>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "runner/checkpoint/reader.h"
#include "runner/contract/beat_page.h"
#include "tests/runner/formats/fault_file_system.h"
#include "tests/runner/loop/line_workload.h"
#include "tests/runner/support/ranks_as_threads.h"
#include "tests/support/temporary_folder.h"

namespace lockstep {
namespace {

// Each evaluation is better than the one before, and the guide's weight file is named after its epoch.
class ImprovingLine final : public LineWorkload {
 public:
  using LineWorkload::LineWorkload;
  std::vector<MetricSum> evaluate(const EvaluationShard& shard) override {
    const bool first = shard.rank == 0;
    return {{.name = "score", .sum = first ? static_cast<double>(++evaluations_) : 0.0, .count = first ? 1.0 : 0.0}};
  }
  [[nodiscard]] std::string best_metric() const override { return "score"; }
  std::string reference_weight_file(const EvaluationReport& report) override {
    return "epoch" + std::to_string(report.epoch) + ".pth";
  }

 private:
  int evaluations_ = 0;
};

// A worker without its process: 8 samples in batches of 4 are two steps an epoch, and each epoch is evaluated.
class TestWorker {
 public:
  TestWorker(FileSystem& fs, const std::string& folder, int rank, int world_size) : workload_(8), fs_(fs) {
    config.training.batch_size = 4;
    config.training.num_epochs = 1;
    config.training.eval_every = 1;
    config.training.checkpoint_every = 0;
    config.training.ema_decay = 0.5;
    config.training.tensorboard = false;
    reporter_ = std::make_unique<Reporter>(Reporter::Options{
        .config = &config, .world = world_of(rank, world_size), .clock = &clock_, .page = &page_, .folder = folder});
    trainer_ = std::make_unique<Trainer>(Trainer::Parts{.config = config,
                                                        .workload = workload_,
                                                        .fs = fs_,
                                                        .signals = signals_,
                                                        .clock = clock_,
                                                        .reporter = *reporter_,
                                                        .faults = faults_,
                                                        .page = page_,
                                                        .device = at::kCPU,
                                                        .precision = {},
                                                        .folder = folder,
                                                        .locks_folder = false});
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
    return {.job_uid = "", .config_hash = config.config_hash(), .workload = workload_.name()};
  }

  RunConfig config;

 private:
  ImprovingLine workload_;
  FileSystem& fs_;
  StopSignals signals_;
  InjectedFaults faults_;
  BeatPage page_;
  PhaseClock clock_{Phase::kStartup, std::chrono::steady_clock::now()};
  std::unique_ptr<Reporter> reporter_;
  std::unique_ptr<Trainer> trainer_;
};

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
  const StoreHandle store(c10::make_intrusive<c10d::HashStore>());
  on_ranks(2, [&](ProcessGroup& group) {
    TestWorker& worker = group.rank() == 0 ? successor : survivor;
    const Outcome outcome = worker.run(group, store, 2);
    EXPECT_EQ(outcome.code, ExitCode::kDone) << outcome.message;
  });
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

}  // namespace
}  // namespace lockstep
