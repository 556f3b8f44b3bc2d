// Phases: their arithmetic, and a run of the toy through both of its phases, disturbed at each point of the change.
#include "runner/loop/phases.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <csignal>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "runner/checkpoint/reader.h"
#include "tests/runner/loop/test_worker.h"
#include "tests/runner/loop/toy_workload.h"
#include "tests/support/temporary_folder.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr int64_t kWordsPerBatch = 30;

std::vector<TrainingPhase> toy_phases() { return ToyWorkload().info().phases; }

std::unique_ptr<BatchSource> toy_batches() {
  return *ToyWorkload().batches({.seed = RunConfig().training.seed, .global_batch = kWordsPerBatch});
}

TEST(Phases, of_a_workload_without_any_are_one_of_all_epochs) {
  TrainingOptions training;
  training.num_epochs = 7;
  const std::vector<TrainingPhase> phases = phases_of({.name = "line", .loss_terms = {}, .best = {}}, training);
  ASSERT_EQ(phases.size(), 1U);
  EXPECT_EQ(phases[0].num_epochs, 7);
  EXPECT_TRUE(phases[0].frozen.empty());
  EXPECT_EQ(options_in(phases[0], training).lr, training.lr);
}

TEST(Phases, say_what_they_change_of_the_flags) {
  TrainingOptions training;
  training.lr = 0.5;
  EXPECT_EQ(options_in(toy_phases()[0], training).lr, 0.1);
  EXPECT_EQ(options_in(toy_phases()[1], training).lr, 0.5);
  EXPECT_EQ(options_in(toy_phases()[1], training).clip_grad_norm, 1.0);
  EXPECT_EQ(describe_phases(toy_phases()), "heads: 2 epochs, lr 0.1, without trunk; whole: 2 epochs, clip 1");
}

TEST(Phases, say_what_a_run_that_is_done_needs_to_go_on) {
  const WorkloadInfo line{.name = "line", .loss_terms = {}, .best = {}};
  TrainingOptions training;
  EXPECT_EQ(needed_to_continue(line, training, 40), "a higher --num_epochs");
  WorkloadInfo toy = ToyWorkload().info();
  EXPECT_EQ(needed_to_continue(toy, training, 40), "more epochs of whole");
  toy.phases.back().epochs_flag = "whole_epochs";
  EXPECT_EQ(needed_to_continue(toy, training, 40), "a higher --whole_epochs");
  training.max_steps = 40;
  EXPECT_EQ(needed_to_continue(toy, training, 40), "a higher --max_steps");
  EXPECT_EQ(needed_to_continue(toy, training, 39), "a higher --whole_epochs");
}

TEST(Phases, lie_one_behind_the_other_in_the_steps) {
  const auto source = toy_batches();
  Counters counters;
  PhaseSteps steps = phase_steps(toy_phases(), counters, 0, *source);
  EXPECT_EQ(steps.begin, 0);
  EXPECT_EQ(steps.end, steps_before(2, *source));
  EXPECT_EQ(steps.total, steps_before(4, *source));
  // The first phase ended after one epoch, and the run is in the middle of the next epoch.
  counters.phase = 1;
  counters.phase_epoch = 1;
  counters.position = {.epoch = 1, .index = 2};
  counters.step = source->steps(0) + 2;
  steps = phase_steps(toy_phases(), counters, 0, *source);
  EXPECT_EQ(steps.begin, source->steps(0));
  EXPECT_EQ(steps.end, steps_before(3, *source));
  EXPECT_EQ(steps.total, steps.end);
  EXPECT_EQ(phase_steps(toy_phases(), counters, 9, *source).end, 9);
}

TEST(Phases, begin_with_new_patience_and_a_new_plateau_and_the_old_best) {
  Counters counters;
  counters.position.epoch = 3;
  counters.plateau = {.best = 0.5, .bad_evaluations = 2, .factor = 0.25};
  counters.evaluations_without_best = 5;
  counters.best_metric = 0.5;
  begin_next_phase(counters);
  EXPECT_EQ(counters.phase, 1);
  EXPECT_EQ(counters.phase_epoch, 3);
  EXPECT_EQ(counters.plateau, PlateauState{});
  EXPECT_EQ(counters.evaluations_without_best, 0);
  EXPECT_EQ(counters.best_metric, 0.5);
}

TEST(Phases, of_a_longer_run_are_refused) {
  Counters counters;
  counters.phase = 2;
  const Status status = check_phase(toy_phases(), counters, "ckpt/step-00000010");
  ASSERT_FALSE(status.ok());
  EXPECT_THAT(status.error().message, HasSubstr("ckpt/step-00000010 is in phase 3 of its run, and this run has 2"));
  counters.phase = 1;
  EXPECT_TRUE(check_phase(toy_phases(), counters, "").ok());
}

struct ToyWorker : WorkerOf<ToyWorkload> {
  ToyWorker(FileSystem& fs, const TemporaryFolder& folder, int rank = 0, int world_size = 1)
      : WorkerOf(fs, folder.path(), rank, world_size, Agent::kOnLink) {
    config.training.batch_size = kWordsPerBatch;
    config.training.lr = 0.05;
    config.training.checkpoint_every = 4;
    config.training.keep_last = 100;
  }
};

std::map<std::string, at::Tensor> tensors_of(const LoadedCheckpoint& checkpoint) {
  std::map<std::string, at::Tensor> all;
  for (const NamedTensor& t : checkpoint.model) all[t.name] = t.tensor;
  for (const NamedTensor& t : checkpoint.optimizer) all[t.name] = t.tensor;
  return all;
}

LoadedCheckpoint newest_of(const TemporaryFolder& folder, const ToyWorker& worker) {
  PosixFileSystem fs;
  auto found = load_newest_checkpoint(fs, folder.path(), worker.identity());
  EXPECT_TRUE(found.ok() && found->checkpoint);
  return std::move(*found->checkpoint);
}

class TwoPhases : public ::testing::Test {
 protected:
  // What an undisturbed run of the same flags ends with, but for the tensor `differs` and these tolerances.
  void expect_undisturbed_end(const std::string& differs = "", double rtol = 0.0, double atol = 0.0) {
    const TemporaryFolder other;
    ToyWorker undisturbed(fs, other);
    ASSERT_EQ(undisturbed.run_alone(1).code, ExitCode::kDone);
    const auto expected = tensors_of(newest_of(other, undisturbed));
    const auto ended = tensors_of(newest_of(folder, worker));
    ASSERT_EQ(ended.size(), expected.size());
    for (const auto& [name, tensor] : expected) {
      EXPECT_TRUE(name == differs || torch::allclose(ended.at(name), tensor, rtol, atol)) << name;
    }
  }

  PosixFileSystem fs;
  TemporaryFolder folder;
  ToyWorker worker{fs, folder};
  const std::unique_ptr<BatchSource> source = toy_batches();
  const int64_t first_phase_end = steps_before(2, *source);
  const int64_t total = steps_before(4, *source);
};

TEST_F(TwoPhases, train_what_is_not_frozen_in_each) {
  ToyWorkload fresh;
  const at::Tensor trunk_at_start = fresh.groups()[0].parameters[0].tensor.detach().clone();
  const at::Tensor trunk = worker.workload.groups()[0].parameters[0].tensor;
  at::Tensor trunk_at_change;
  worker.workload.in_enter_phase = [&](int64_t /*phase*/, const auto&) {
    worker.workload.in_enter_phase = [&](int64_t phase, const auto&) {
      EXPECT_EQ(phase, 1);
      EXPECT_EQ(worker.step(), first_phase_end);
      trunk_at_change = trunk.detach().clone();
    };
  };
  ASSERT_EQ(worker.run_alone(1).code, ExitCode::kDone);
  EXPECT_EQ(worker.step(), total);
  EXPECT_TRUE(trunk_at_change.equal(trunk_at_start)) << "frozen in the first phase";
  EXPECT_FALSE(trunk.equal(trunk_at_start)) << "trained in the second";
  auto ended = tensors_of(newest_of(folder, worker));
  EXPECT_EQ(ended["step.heads"].item<float>(), static_cast<float>(total));
  EXPECT_EQ(ended["step.trunk"].item<float>(), static_cast<float>(total - first_phase_end));
}

TEST_F(TwoPhases, are_said_by_their_names_when_they_begin) {
  testing::internal::CaptureStdout();
  const Outcome outcome = worker.run_alone(1);
  const std::string said = testing::internal::GetCapturedStdout();
  ASSERT_EQ(outcome.code, ExitCode::kDone) << outcome.message;
  EXPECT_THAT(said, HasSubstr("now whole: 2 epochs, clip 1, from step " + std::to_string(first_phase_end + 1)));
}

struct FlaggedToy : ToyWorkload {
  FlaggedToy() { info_.phases.back().epochs_flag = "whole_epochs"; }
};

TEST_F(TwoPhases, name_the_flag_of_the_last_one_to_a_run_that_is_done) {
  WorkerOf<FlaggedToy> first(fs, folder.path(), 0, 1);
  first.config = worker.config;
  ASSERT_EQ(first.run_alone(1).code, ExitCode::kDone);
  WorkerOf<FlaggedToy> again(fs, folder.path(), 0, 1);
  again.config = worker.config;
  testing::internal::CaptureStdout();
  const Outcome outcome = again.run_alone(2);
  const std::string said = testing::internal::GetCapturedStdout();
  EXPECT_EQ(outcome.code, ExitCode::kDone) << outcome.message;
  EXPECT_THAT(said, HasSubstr("nothing to do; to train further, use a higher --whole_epochs"));
}

TEST_F(TwoPhases, are_the_same_for_every_world_size) {
  ASSERT_EQ(worker.run_alone(1).code, ExitCode::kDone);
  const auto alone = tensors_of(newest_of(folder, worker));
  const TemporaryFolder shared;
  const StoreHandle store(c10::make_intrusive<c10d::HashStore>());
  std::array<float, 3> buffers{};
  on_ranks(3, [&](ProcessGroup& group) {
    ToyWorker ranked(fs, shared, group.rank(), 3);
    EXPECT_EQ(ranked.run(group, store).code, ExitCode::kDone);
    buffers[static_cast<size_t>(group.rank())] = ranked.workload.buffers()[0].tensor.item<float>();
  });
  EXPECT_NE(buffers[0], 0.0F);
  for (const float buffer : buffers) EXPECT_EQ(buffer, buffers[0]) << "of the sums of all ranks";
  for (const auto& [name, tensor] : tensors_of(newest_of(shared, worker))) {
    EXPECT_TRUE(torch::allclose(tensor, alone.at(name), 1e-3, 1e-4)) << name;
  }
  // Three ranks have read four sentences each.
  const std::string text = output_path({.step = total, .name = ToyWorkload::kTextFile});
  std::istringstream lines_of_one(contents(folder.file(text)));
  std::istringstream lines_of_three(contents(shared.file(text)));
  std::string one;
  std::string three;
  for (int64_t sentence = 0; sentence < ToyWorkload::kValidated; ++sentence) {
    ASSERT_TRUE(std::getline(lines_of_one, one) && std::getline(lines_of_three, three));
    const std::string head = "sentence " + std::to_string(sentence) + ": ";
    ASSERT_TRUE(one.starts_with(head) && three.starts_with(head)) << one << ", " << three;
    EXPECT_NEAR(std::stod(three.substr(head.size())), std::stod(one.substr(head.size())), 0.01);
  }
  EXPECT_TRUE(load_weights(fs, shared.file(ToyWorkload::kBestFile)).ok());
}

TEST_F(TwoPhases, go_on_from_a_checkpoint_of_each) {
  for (const int64_t stop_at : {first_phase_end - 2, first_phase_end, first_phase_end + 1, total}) {
    ToyWorker part(fs, folder);
    part.config.training.max_steps = stop_at;
    ASSERT_EQ(part.run_alone(1).code, ExitCode::kDone);
    ASSERT_EQ(part.step(), stop_at);
  }
  expect_undisturbed_end("offset");  // each end is evaluated, and it is a mean over the evaluations
}

TEST_F(TwoPhases, go_on_from_a_checkpoint_with_another_number_of_ranks) {
  struct Part {
    int world_size;
    int64_t stop_at;  // within an epoch of the first phase, of the second one, at the end
  };
  for (const Part& part : {Part{3, first_phase_end - 2}, Part{1, first_phase_end + 1}, Part{2, total}}) {
    const StoreHandle store(c10::make_intrusive<c10d::HashStore>());
    on_ranks(part.world_size, [&](ProcessGroup& group) {
      ToyWorker ranked(fs, folder, group.rank(), part.world_size);
      ranked.config.training.max_steps = part.stop_at;
      EXPECT_EQ(ranked.run(group, store).code, ExitCode::kDone);
      EXPECT_EQ(ranked.step(), part.stop_at);
    });
  }
  expect_undisturbed_end("offset", 1e-3, 1e-4);
}

TEST_F(TwoPhases, change_again_in_the_next_group_when_the_group_is_cut_in_between) {
  int changes = 0;
  worker.workload.in_enter_phase = [&](int64_t /*phase*/, const auto&) {
    worker.workload.in_enter_phase = [&](int64_t phase, const std::function<bool()>& goes_on) {
      changes += phase == 1 ? 1 : 0;
      worker.cut(1);
      while (goes_on()) std::this_thread::yield();
    };
  };
  const Outcome outcome = worker.run_alone(1);
  EXPECT_EQ(outcome.wait_reason, kLeftCut) << outcome.message;
  EXPECT_EQ(changes, 1);
  EXPECT_EQ(worker.step(), first_phase_end);
  ASSERT_EQ(worker.run_alone(2).code, ExitCode::kDone);
  expect_undisturbed_end();
}

TEST_F(TwoPhases, change_again_when_all_were_to_leave_in_between) {
  worker.workload.in_enter_phase = [&](int64_t /*phase*/, const auto&) {
    worker.workload.in_enter_phase = [&](int64_t /*phase*/, const std::function<bool()>& goes_on) {
      worker.leave(1);
      while (goes_on()) std::this_thread::yield();
    };
  };
  EXPECT_EQ(worker.run_alone(1).wait_reason, kLeftRegroup);
  ASSERT_EQ(worker.run_alone(2).code, ExitCode::kDone);
  expect_undisturbed_end();
}

TEST_F(TwoPhases, stop_in_between_with_a_checkpoint_of_the_step_and_change_on_resume) {
  worker.workload.in_enter_phase = [&](int64_t /*phase*/, const auto&) {
    worker.workload.in_enter_phase = [&](int64_t /*phase*/, const std::function<bool()>& goes_on) {
      EXPECT_EQ(std::raise(SIGTERM), 0);
      while (goes_on()) std::this_thread::yield();
    };
  };
  EXPECT_EQ(worker.run_alone(1).code, ExitCode::kTerminated);
  EXPECT_EQ(newest_of(folder, worker).state.step, first_phase_end);
  ToyWorker resumed(fs, folder);
  ASSERT_EQ(resumed.run_alone(2).code, ExitCode::kDone);
  expect_undisturbed_end();
}

TEST_F(TwoPhases, are_entered_anew_only_by_who_got_another_state) {
  worker.config.training.max_steps = 3;
  ASSERT_EQ(worker.run_alone(1).code, ExitCode::kDone);
  EXPECT_EQ(worker.workload.times_entered, 1);
  ASSERT_EQ(worker.run_alone(2).code, ExitCode::kDone);
  EXPECT_EQ(worker.workload.times_entered, 1) << "it goes on from its own state";
}

TEST_F(TwoPhases, end_early_when_patience_is_out) {
  worker.config.training.early_stop_patience = 1;
  worker.config.training.lr = 1e9;  // of the second phase: no evaluation is better than the first phase's
  ASSERT_EQ(worker.run_alone(1).code, ExitCode::kDone);
  EXPECT_EQ(worker.step(), steps_before(3, *source));
}

TEST_F(TwoPhases, end_the_rank_when_one_cannot_be_entered) {
  worker.workload.unenterable_phase = 1;
  const Outcome outcome = worker.run_alone(1);
  EXPECT_EQ(outcome.code, ExitCode::kData);
  EXPECT_THAT(outcome.message, HasSubstr("the words of phase 2 are torn"));
}

// Weights that are in no checkpoint.
struct OtherTable : ToyWorkload {
  [[nodiscard]] std::vector<FrozenInput> frozen() const override {
    return {{.name = "the table of words", .sha256 = "another"}};
  }
};

TEST_F(TwoPhases, do_not_go_on_beside_other_frozen_weights) {
  worker.config.training.max_steps = 2;
  ASSERT_EQ(worker.run_alone(1).code, ExitCode::kDone);
  WorkerOf<OtherTable> other(fs, folder.path(), 0, 1);
  other.config = worker.config;
  const Outcome outcome = other.run_alone(2);
  EXPECT_EQ(outcome.code, ExitCode::kUsage);
  EXPECT_THAT(outcome.message, HasSubstr("was trained with another version of the table of words (sha256"));
}

// As many epochs as --num_epochs says.
struct OnePhaseToy : ToyWorkload {
  OnePhaseToy() : ToyWorkload({.phase_epochs = 0}) {}
};

TEST(BestModelFile, of_the_toy_is_one_that_a_run_goes_on_from) {
  PosixFileSystem fs;
  const TemporaryFolder first_folder;
  WorkerOf<OnePhaseToy> first(fs, first_folder.path(), 0, 1);
  first.config.training.batch_size = kWordsPerBatch;
  ASSERT_EQ(first.run_alone(1).code, ExitCode::kDone);

  const TemporaryFolder second_folder;
  WorkerOf<OnePhaseToy> second(fs, second_folder.path(), 0, 1);
  second.config.training = first.config.training;
  second.config.training.num_epochs = 2;
  second.config.training.resume = first_folder.file(ToyWorkload::kBestFile);
  ASSERT_EQ(second.run_alone(1).code, ExitCode::kDone);
  EXPECT_EQ(second.step(), steps_before(2, *toy_batches()));
  EXPECT_THAT(contents(second_folder.file("log.txt")), StartsWith("epoch valid_number\n2 ")) << "epoch 1 is behind it";
  const auto found = load_newest_checkpoint(fs, second_folder.path(), second.identity());
  ASSERT_TRUE(found.ok() && found->checkpoint);
  EXPECT_EQ(tensors_of(*found->checkpoint)["step.heads"].item<float>(), static_cast<float>(second.step()));

  EXPECT_THAT(ToyWorkload().restore_from_file({{"epoch", 1}}).error().message, HasSubstr("field best is missing"));
}

TEST(Likelihood, decides_the_plateau_of_the_toy_and_more_of_it_is_better) {
  PosixFileSystem fs;
  const TemporaryFolder folder;
  WorkerOf<OnePhaseToy> worker(fs, folder.path(), 0, 1);
  worker.config.training.batch_size = kWordsPerBatch;
  ASSERT_EQ(worker.run_alone(1).code, ExitCode::kDone);
  const auto found = load_newest_checkpoint(fs, folder.path(), worker.identity());
  ASSERT_TRUE(found.ok() && found->checkpoint);
  const Json& counters = found->checkpoint->state.progress.at("counters");
  EXPECT_GT(counters.at("plateau_best").get<double>(), 0.0);
  EXPECT_LT(counters.at("best_metric").get<double>(), 0.0) << "a loss counts negated";
}

// The rate follows the mean of the training loss, which no evaluation of the workload's own has.
struct PlateauToy : ToyWorkload {
  PlateauToy() {
    info_.phases.clear();
    info_.plateau = DecidingFigure{.name = kTrainLoss, .direction = Direction::kLower};
  }
};

TEST(TrainLoss, decides_the_plateau_where_the_workload_says_so) {
  PosixFileSystem fs;
  const TemporaryFolder folder;
  WorkerOf<PlateauToy> worker(fs, folder.path(), 0, 1);
  worker.config.training.batch_size = kWordsPerBatch;
  worker.config.training.num_epochs = 4;
  worker.config.training.lr = 0.0;  // nothing is learnt: the loss stays where it is, but for its dropout
  worker.config.training.lr_schedule = LrScheduleKind::kPlateau;
  worker.config.training.plateau_patience = 0;
  ASSERT_EQ(worker.run_alone(1).code, ExitCode::kDone);
  const auto found = load_newest_checkpoint(fs, folder.path(), worker.identity());
  ASSERT_TRUE(found.ok() && found->checkpoint);
  const Json& counters = found->checkpoint->state.progress.at("counters");
  EXPECT_LT(counters.at("plateau_best").get<double>(), 0.0) << "a loss counts negated";
  EXPECT_TRUE(counters.at("training").empty()) << "the last evaluation took them";
}

}  // namespace
}  // namespace lockstep
