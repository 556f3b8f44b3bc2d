#include "runner/loop/state_sync.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <variant>
#include <vector>

#include "runner/base/forwarding_file_system.h"
#include "runner/checkpoint/weights.h"
#include "runner/contract/beat_page.h"
#include "runner/dist/device_stream.h"
#include "runner/dist/fault.h"
#include "runner/dist/process_group.h"
#include "runner/models/gpt2rec/gpt2rec_workload.h"
#include "runner/models/workload_flags.h"
#include "runner/telemetry/phase_clock.h"
#include "tests/runner/loop/toy_workload.h"
#include "tests/runner/support/ranks_as_threads.h"
#include "tests/support/disk.h"
#include "tests/support/save_weights.h"
#include "tests/support/temporary_folder.h"

namespace lockstep {
namespace {

struct Synced {
  int messages = 0;  // of tensors
  Counters counters;
  bool improved = false;
  double first_weight = 0.0;
  double buffer = 0.0;
  bool from_live_rank = false;
};

// What each rank holds after sync_state, when `arrange` has set what it comes with.
std::array<Synced, 2> sync_two_ranks(const std::function<void(int rank, TrainingState&)>& arrange) {
  const TemporaryFolder folder;
  const StoreHandle store(c10::make_intrusive<c10d::HashStore>());
  std::array<Synced, 2> found;
  on_ranks(2, [&](ProcessGroup& group) {
    RunConfig config;
    ToyWorkload workload(even_toy(10));
    TrainingState state(workload, config.training);
    arrange(group.rank(), state);
    PosixFileSystem fs;
    PhaseClock clock(Phase::kStartup, std::chrono::steady_clock::now());
    const auto stream = make_device_stream(at::kCPU);
    const RankContext context{.config = config, .workload = workload, .fs = fs, .clock = clock, .stream = *stream};
    int messages = 0;
    StopToken stop;
    stop.is_cut = [&] {  // looked at after each message; and while rank 0 reads
      messages += clock.phase() == Phase::kWaiting ? 1 : 0;
      return false;
    };
    const SyncOptions options{.folder = folder.path(), .identity = {}, .generation = 5, .first_batch = BatchShape{}};
    const SyncOutcome outcome = sync_state({context, state, group, store, stop}, options);
    const auto* const result = std::get_if<SyncResult>(&outcome);
    ASSERT_NE(result, nullptr) << std::get<Failure>(outcome).message;
    found[static_cast<size_t>(group.rank())] = {
        .messages = messages,
        .counters = state.counters,
        .improved = state.journal.improved,
        .first_weight = state.parameters()[0].tensor.detach()[0][0].item<double>(),
        .buffer = workload.buffers()[0].tensor.item<double>(),
        .from_live_rank = result->from_live_rank};
  });
  return found;
}

void hold(TrainingState& state, int64_t step) {
  state.counters.has_state = true;
  state.counters.lineage = 1;
  state.counters.step = step;
  state.counters.batch = {.global_batch = 4, .micro_batch_max = 2, .declared_world_size = 2};
  state.counters.position = {.epoch = step / 3, .index = step % 3};
  state.counters.epoch_steps = 3;
}

// The group broke when rank 1 had the sums of an evaluation and rank 0 had not. If their states counted as equal, rank
// 0 would evaluate and rank 1 train, and each would wait for the other.
TEST(StateSync, an_evaluation_that_one_rank_has_finished_is_finished_for_all) {
  const auto found = sync_two_ranks([](int rank, TrainingState& state) {
    hold(state, 8);
    if (rank == 0) return;
    state.counters.evaluated_step = 8;
    state.counters.best_metric = 0.7;
    state.counters.evaluations_without_best = 0;
    state.journal.evaluation = EvaluationNote{.report = {.step = 8, .metrics = {{"NDCG@10", 0.7}}}, .outputs = {}};
    state.journal.improved = true;
  });
  for (const Synced& rank : found) {
    EXPECT_TRUE(rank.from_live_rank);
    EXPECT_EQ(rank.counters.evaluated_step, 8);
    EXPECT_EQ(rank.counters.best_metric, 0.7);
    EXPECT_TRUE(rank.improved) << "the best mark is still to be written";
  }
}

TEST(StateSync, of_two_groups_that_made_the_same_step_the_newer_one_counts) {
  const auto found = sync_two_ranks([](int rank, TrainingState& state) {
    hold(state, 8);
    state.counters.generation = rank == 0 ? 3 : 4;
    const torch::NoGradGuard no_grad;
    state.parameters()[0].tensor.fill_(rank == 0 ? 0.25 : 0.75);
  });
  for (const Synced& rank : found) EXPECT_EQ(rank.first_weight, 0.75);
}

TEST(StateSync, the_rank_that_is_a_step_ahead_gives_its_weights_and_buffers) {
  const auto found = sync_two_ranks([](int rank, TrainingState& state) {
    hold(state, rank == 0 ? 7 : 8);
    const torch::NoGradGuard no_grad;
    for (const NamedTensor& t : state.model_tensors()) t.tensor.fill_(rank == 0 ? 0.25 : 0.75);
  });
  for (const Synced& rank : found) {
    EXPECT_EQ(rank.counters.step, 8);
    EXPECT_EQ(rank.first_weight, 0.75);
    EXPECT_EQ(rank.buffer, 0.75);
    EXPECT_GT(rank.messages, 0);
  }
}

TEST(StateSync, ranks_that_lack_nothing_are_sent_nothing) {
  const auto found = sync_two_ranks([](int, TrainingState& state) { hold(state, 8); });
  for (const Synced& rank : found) {
    EXPECT_TRUE(rank.from_live_rank);
    EXPECT_EQ(rank.counters.step, 8);
    EXPECT_EQ(rank.messages, 0);
  }
}

// One rank holds a state, the other one receives it, both are asked to stop meanwhile; the step that each has then, or
// -1 when it has left the group.
std::array<int64_t, 2> stop_in_transfer(int receiver, const StopToken& stop) {
  const TemporaryFolder folder;
  const StoreHandle store(c10::make_intrusive<c10d::HashStore>());
  std::array<int64_t, 2> steps{};
  on_ranks(2, [&](ProcessGroup& group) {
    const RunConfig config;
    ToyWorkload workload(even_toy(10));
    TrainingState state(workload, config.training);
    if (group.rank() != receiver) hold(state, 8);
    PosixFileSystem fs;
    const auto stream = make_device_stream(at::kCPU);
    PhaseClock clock(Phase::kStartup, std::chrono::steady_clock::now());
    const RankContext context{.config = config, .workload = workload, .fs = fs, .clock = clock, .stream = *stream};
    const SyncOptions options{.folder = folder.path(), .identity = {}, .generation = 5, .first_batch = BatchShape{}};
    int64_t& step = steps[static_cast<size_t>(group.rank())];
    try {
      const SyncOutcome outcome = sync_state({context, state, group, store, stop}, options);
      step = std::holds_alternative<SyncResult>(outcome) ? state.counters.step : -1;
    } catch (const std::exception& e) {
      EXPECT_EQ(classify_fault(e).code, ExitCode::kPeerLost) << e.what();
      EXPECT_EQ(state.counters.has_state, group.rank() != receiver) << "nothing but a whole state is taken";
      step = -1;
    }
  });
  return steps;
}

// The frozen GPT-2 has 1.9 M weights here. What is trained has three numbers each: the weight and Adam's two moments.
TEST(StateSync, of_weights_that_are_never_trained_nothing_is_sent) {
  const Result<RunConfig> config = parse_run_config(
      {"gpt2rec", "--data_path", "generated", "--gpt2_config", "2x256", "--use_cache", "false"}, all_workload_flags());
  ASSERT_TRUE(config.ok()) << config.error().message;
  const WorkloadOrFailure made = make_gpt2rec(disk(), *config, at::kCPU, [](int64_t, int64_t) {});
  ASSERT_TRUE(std::holds_alternative<std::unique_ptr<Workload>>(made));
  Workload& workload = *std::get<std::unique_ptr<Workload>>(made);
  workload.initialize(1);
  const TrainingState state(workload, config->training);
  size_t trained = 0;
  for (const NamedTensor& parameter : state.parameters()) trained += static_cast<size_t>(parameter.tensor.numel());
  EXPECT_LT(trained, 400'000U);
  size_t sent = 0;
  for (const NamedTensor& t : state.all_tensors()) sent += t.tensor.nbytes();
  const size_t weights_and_moments = 3 * sizeof(float) * trained;
  const size_t step_counts = state.all_tensors().size() * sizeof(double);
  EXPECT_GE(sent, weights_and_moments);
  EXPECT_LE(sent, weights_and_moments + step_counts);
}

// Only rank 0 writes, so that it must receive the state that the last checkpoint is to hold. In all other cases nothing
// is lost if the ranks leave at once.
TEST(StateSync, a_stop_ends_a_transfer_unless_it_is_rank_0_that_receives) {
  StopToken stop;
  stop.requests = [] { return StepRequests{.stop_code = 143}; };
  EXPECT_EQ(stop_in_transfer(/*receiver=*/0, stop), (std::array<int64_t, 2>{8, 8}));
  EXPECT_EQ(stop_in_transfer(/*receiver=*/1, stop), (std::array<int64_t, 2>{-1, -1}));
}

TEST(StateSync, a_cut_ends_a_transfer_whoever_receives) {
  StopToken stop;
  stop.is_cut = [] { return true; };
  for (const int receiver : {0, 1}) {
    EXPECT_EQ(stop_in_transfer(receiver, stop), (std::array<int64_t, 2>{-1, -1})) << receiver;
  }
}

// A read that was broken off says nothing about the file, and must not be reported to the others as a fault of the
// file.
TEST(StateSync, a_cut_or_a_stop_ends_the_reading_and_blames_no_file) {
  const TemporaryFolder folder;
  PosixFileSystem fs;
  RunConfig config;
  ToyWorkload workload(even_toy(10));
  config.training.state_dict_path = folder.file("weights.safetensors");
  ASSERT_TRUE(save_weights(fs, config.training.state_dict_path, parameters_of(workload)).ok());
  const StoreHandle store(c10::make_intrusive<c10d::HashStore>());
  const auto group = ProcessGroup::solo({.assignment = assigned(0, 1), .network_interface = ""});
  const auto stream = make_device_stream(at::kCPU);
  PhaseClock clock(Phase::kStartup, std::chrono::steady_clock::now());
  const RankContext context{.config = config, .workload = workload, .fs = fs, .clock = clock, .stream = *stream};
  const SyncOptions options{
      .folder = folder.path(),
      .identity = {},
      .generation = 5,
      .first_batch = BatchShape{.global_batch = 4, .micro_batch_max = 2, .declared_world_size = 1}};
  StopToken cut;
  cut.is_cut = [] { return true; };
  StopToken asked;
  asked.requests = [] { return StepRequests{.stop_code = 130}; };
  for (const StopToken& stop : {cut, asked}) {
    TrainingState state(workload, config.training);
    const SyncOutcome outcome = sync_state({context, state, *group, store, stop}, options);
    ASSERT_TRUE(std::holds_alternative<Failure>(outcome));
    EXPECT_EQ(std::get<Failure>(outcome).code, ExitCode::kPeerLost) << std::get<Failure>(outcome).message;
    EXPECT_FALSE(state.counters.has_state);
  }
  TrainingState state(workload, config.training);
  const SyncOutcome outcome = sync_state({context, state, *group, store}, options);
  ASSERT_TRUE(std::holds_alternative<SyncResult>(outcome)) << std::get<Failure>(outcome).message;
}

// From then on the first signal asks the worker to stop, and does not end the process.
TEST(StateSync, says_that_a_state_comes_from_a_live_rank_before_it_comes) {
  const TemporaryFolder folder;
  const StoreHandle store(c10::make_intrusive<c10d::HashStore>());
  on_ranks(2, [&](ProcessGroup& group) {
    const RunConfig config;
    ToyWorkload workload(even_toy(10));
    TrainingState state(workload, config.training);
    if (group.rank() == 1) hold(state, 8);
    PosixFileSystem fs;
    const auto stream = make_device_stream(at::kCPU);
    PhaseClock clock(Phase::kStartup, std::chrono::steady_clock::now());
    const RankContext context{.config = config, .workload = workload, .fs = fs, .clock = clock, .stream = *stream};
    std::vector<std::string> told;
    const SyncOptions options{
        .folder = folder.path(), .identity = {}, .generation = 5, .first_batch = BatchShape{}, .on_live_state = [&] {
          told.emplace_back("live");
        }};
    StopToken stop;
    stop.is_cut = [&] {  // looked at after each message; and while rank 0 reads
      if (clock.phase() == Phase::kWaiting) told.emplace_back("message");
      return false;
    };
    const SyncOutcome outcome = sync_state({context, state, group, store, stop}, options);
    ASSERT_TRUE(std::holds_alternative<SyncResult>(outcome)) << std::get<Failure>(outcome).message;
    ASSERT_GT(told.size(), 1U);
    EXPECT_EQ(told[0], "live");
    EXPECT_EQ(std::count(told.begin(), told.end(), "live"), 1);
  });
}

// Reads no checkpoint before rank 1 shows that it waits.
class PeerWatchingFileSystem final : public ForwardingFileSystem {
 public:
  PeerWatchingFileSystem(FileSystem& below, const std::array<BeatPage, 2>& pages)
      : ForwardingFileSystem(below), pages_(pages) {}
  Result<std::vector<DirectoryEntry>> list(const std::string& path) override {
    while (pages_[1].phase != Phase::kWaiting) std::this_thread::yield();
    EXPECT_EQ(pages_[0].phase, Phase::kStartup);
    has_looked = true;
    return ForwardingFileSystem::list(path);
  }

  bool has_looked = false;

 private:
  const std::array<BeatPage, 2>& pages_;
};

TEST(StateSync, tells_a_rank_0_that_reads_from_those_that_wait_for_it) {
  const TemporaryFolder folder;
  const StoreHandle store(c10::make_intrusive<c10d::HashStore>());
  std::array<BeatPage, 2> pages;
  on_ranks(2, [&](ProcessGroup& group) {
    const RunConfig config;
    ToyWorkload workload(even_toy(10));
    TrainingState state(workload, config.training);
    PosixFileSystem posix;
    PeerWatchingFileSystem fs(posix, pages);
    PhaseClock clock(Phase::kStartup, std::chrono::steady_clock::now());
    const auto stream = make_device_stream(at::kCPU);
    const RankContext context{.config = config, .workload = workload, .fs = fs, .clock = clock, .stream = *stream};
    clock.show_on(pages[static_cast<size_t>(group.rank())]);
    const SyncOptions options{
        .folder = folder.path(),
        .identity = {},
        .generation = 5,
        .first_batch = BatchShape{.global_batch = 4, .micro_batch_max = 2, .declared_world_size = 2}};
    const SyncOutcome outcome = sync_state({context, state, group, store}, options);
    ASSERT_TRUE(std::holds_alternative<SyncResult>(outcome)) << std::get<Failure>(outcome).message;
    EXPECT_EQ(fs.has_looked, group.rank() == 0);
    EXPECT_EQ(clock.phase(), Phase::kStartup);
  });
}

// What rank 0 found out while it read (a damaged checkpoint, say) is not read a second time.
TEST(StateSync, says_where_a_run_begins_before_a_group_can_break) {
  const TemporaryFolder folder;
  const StoreHandle store(c10::make_intrusive<c10d::HashStore>());
  std::array<std::vector<std::string>, 2> origins;
  on_ranks(2, [&](ProcessGroup& group) {
    const auto rank = static_cast<size_t>(group.rank());
    const RunConfig config;
    ToyWorkload workload(even_toy(10));
    TrainingState state(workload, config.training);
    PosixFileSystem fs;
    PhaseClock clock(Phase::kStartup, std::chrono::steady_clock::now());
    const auto stream = make_device_stream(at::kCPU);
    const RankContext context{.config = config, .workload = workload, .fs = fs, .clock = clock, .stream = *stream};
    const SyncOptions options{
        .folder = folder.path(),
        .identity = {},
        .generation = 5,
        .first_batch = BatchShape{.global_batch = 4, .micro_batch_max = 2, .declared_world_size = 2},
        .on_start = [&](const SyncResult& start) { origins[rank].push_back(start.origin); }};
    StopToken stop;
    stop.is_cut = [&] {  // looked at after each message; and before that while rank 0 reads
      if (rank == 1 || !origins[rank].empty()) throw std::runtime_error("the group broke");
      return false;
    };
    EXPECT_THROW(sync_state({context, state, group, store, stop}, options), std::runtime_error);
    EXPECT_EQ(state.counters.has_state, rank == 0);
  });
  EXPECT_EQ(origins[0], std::vector<std::string>{"initialised from seed " + std::to_string(RunConfig{}.training.seed)});
  EXPECT_TRUE(origins[1].empty());
}

class WordyToy final : public ToyWorkload {
 public:
  WordyToy() : ToyWorkload(even_toy(10)) {}
  [[nodiscard]] Json progress_state() const override { return {{"said", std::string(letters, 'x')}}; }
  Status restore_progress(const Json& /*state*/) override { return {}; }

  size_t letters = kProgressStateBytesMax;
};

// The agents' messages have a limit: without this one, each sync would end in a closed connection.
TEST(StateSync, refuses_a_workload_that_remembers_more_than_can_be_sent_and_names_it) {
  const TemporaryFolder folder;
  PosixFileSystem fs;
  const RunConfig config;
  const auto stream = make_device_stream(at::kCPU);
  const auto sync = [&](WordyToy& workload, ProcessGroup& group, const StoreHandle& store, bool holds_a_state) {
    TrainingState state(workload, config.training);
    if (holds_a_state) hold(state, 8);
    PhaseClock clock(Phase::kStartup, std::chrono::steady_clock::now());
    const RankContext context{.config = config, .workload = workload, .fs = fs, .clock = clock, .stream = *stream};
    const SyncOptions options{
        .folder = folder.path(),
        .identity = {},
        .generation = 5,
        .first_batch = BatchShape{.global_batch = 4, .micro_batch_max = 2, .declared_world_size = 2}};
    return sync_state({context, state, group, store}, options);
  };
  for (const bool from_memory : {false, true}) {
    const StoreHandle store(c10::make_intrusive<c10d::HashStore>());
    on_ranks(2, [&](ProcessGroup& group) {
      WordyToy workload;
      const SyncOutcome outcome = sync(workload, group, store, from_memory && group.rank() == 0);
      ASSERT_TRUE(std::holds_alternative<Failure>(outcome));
      EXPECT_EQ(std::get<Failure>(outcome).code, ExitCode::kUsage);
      EXPECT_NE(std::get<Failure>(outcome).message.find("workload " + workload.info().name + ": progress_state()"),
                std::string::npos)
          << std::get<Failure>(outcome).message;
    });
  }
  const StoreHandle store(c10::make_intrusive<c10d::HashStore>());
  on_ranks(2, [&](ProcessGroup& group) {
    WordyToy workload;
    workload.letters -= 100;
    const SyncOutcome outcome = sync(workload, group, store, false);
    EXPECT_TRUE(std::holds_alternative<SyncResult>(outcome)) << std::get<Failure>(outcome).message;
  });
}

}  // namespace
}  // namespace lockstep
