#include "runner/loop/memory_advice.h"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>

#include "tests/runner/loop/test_worker.h"
#include "tests/runner/loop/toy_workload.h"
#include "tests/support/temporary_folder.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;

void run_out_of_memory() {
  throw c10::OutOfMemoryError({__func__, __FILE__, __LINE__}, "CUDA out of memory. Tried to allocate 2.00 GiB");
}

// Memory for so many samples at once.
struct LargeToy : ToyWorkload {
  LargeToy() : ToyWorkload(even_toy(64)) {}
  std::vector<at::Tensor> loss(const DeviceBatch& batch) override {
    if (std::ssize(batch.share.samples) > fit) run_out_of_memory();
    return ToyWorkload::loss(batch);
  }
  [[nodiscard]] std::string memory_advice() const override { return "a smaller --maxlen (now 200) takes less"; }
  [[nodiscard]] Result<HostBatch> fetch(const BatchShare& share) const override {
    fetched_phase = share.phase;
    return ToyWorkload::fetch(share);
  }
  void count_batches_by(const std::string& flag) { info_.batch_flag = flag; }
  void begin_with_a_phase() { info_.phases = {{.name = "all", .num_epochs = 1, .epochs_flag = "num_epochs"}}; }

  int64_t fit = 5;
  mutable std::atomic<int64_t> fetched_phase = -1;  // of the last fetch
};

struct OutOfMemory : ::testing::Test {
  Outcome run() {
    worker.config.training.batch_size = 32;
    return worker.run_alone(1);
  }
  PosixFileSystem fs;
  TemporaryFolder folder;
  WorkerOf<LargeToy> worker{fs, folder.path(), 0, 1};
};

TEST_F(OutOfMemory, names_the_batch_that_was_tried_and_fits_and_the_flags_for_it) {
  const Outcome outcome = run();
  EXPECT_EQ(outcome.code, ExitCode::kOutOfMemory);
  EXPECT_THAT(outcome.message, HasSubstr("at step 1: CUDA out of memory"));
  EXPECT_THAT(outcome.message, HasSubstr("a rank took 32 at once, and 4 fit: give --grad_accum_steps 8 for the same "
                                         "result, or --batch_size 4 alone for a smaller batch; a smaller --maxlen"));
}

TEST_F(OutOfMemory, names_the_flag_that_the_workload_counts_its_batches_by) {
  worker.workload.count_batches_by("batch_tokens");
  EXPECT_THAT(run().message, HasSubstr("or --batch_tokens 4 alone for a smaller batch"));
}

TEST_F(OutOfMemory, is_tried_with_batches_of_the_phase_in_which_it_happened) {
  TrainingState state(worker.workload, worker.config.training);
  state.counters.batch = {.global_batch = 32, .micro_batch_max = 32};
  state.counters.phase = 1;
  const auto source = std::move(worker.workload.batches({.global_batch = 32})).value();
  EXPECT_EQ(micro_batch_that_fits(worker.workload, state, *source, 7, at::kCPU, Precision::kFp32), 4);
  EXPECT_EQ(worker.workload.fetched_phase, 1);
}

TEST_F(OutOfMemory, is_followed_by_a_run_with_the_flags_that_it_named) {
  worker.config.training.grad_accum_steps = 8;
  EXPECT_EQ(run().code, ExitCode::kDone);
}

TEST_F(OutOfMemory, while_a_phase_is_entered_is_followed_by_the_workloads_advice_alone) {
  worker.workload.begin_with_a_phase();
  worker.workload.in_enter_phase = [](int64_t /*phase*/, const auto& /*goes_on*/) { run_out_of_memory(); };
  const Outcome outcome = run();
  EXPECT_EQ(outcome.code, ExitCode::kOutOfMemory);
  EXPECT_THAT(outcome.message, HasSubstr("Tried to allocate 2.00 GiB; a smaller --maxlen (now 200) takes less"));
}

TEST_F(OutOfMemory, says_that_nothing_fits_where_nothing_does) {
  worker.workload.fit = 0;
  EXPECT_THAT(run().message, HasSubstr("a rank took 32 at once, and a smaller batch did not fit either"));
}

TEST_F(OutOfMemory, of_a_batch_per_device_keeps_the_global_batch) {
  worker.config.training.batch_scope = BatchScope::kPerDevice;
  EXPECT_THAT(run().message,
              HasSubstr("--batch_size 4 --grad_accum_steps 8 for the same result, or --batch_size 4 alone"));
}

}  // namespace
}  // namespace lockstep
