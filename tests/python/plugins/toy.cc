// The workload of the loop's tests (tests/runner/loop/toy_workload.h) as a plugin, for tests that kill whole programs.
#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "runner/plugin/plugin.h"
#include "toy_workload.h"

namespace {

using namespace lockstep;

struct Options {
  int64_t milliseconds = 0;         // that each step takes longer
  std::string prepared;             // a folder, into which twenty parts are prepared
  int64_t part_milliseconds = 100;  // of each part
  int64_t table_pitch = 1;          // of the frozen table
};

struct ReadOptions {
  int64_t sentence = 0;
};

class SlowToy final : public ToyWorkload {
 public:
  SlowToy(const ToyOptions& toy, int64_t milliseconds) : ToyWorkload(toy), milliseconds_(milliseconds) {}

  std::vector<at::Tensor> loss(const DeviceBatch& batch) override {
    if (batch.is_training) std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds_));
    return ToyWorkload::loss(batch);
  }

 private:
  int64_t milliseconds_;
};

// Parts that are there are kept.
void prepare(const std::filesystem::path& folder, std::chrono::milliseconds part_time, const OnDataProgress& progress) {
  constexpr int64_t kParts = 20;
  std::filesystem::create_directories(folder);
  for (int64_t part = 0; part < kParts; ++part) {
    progress(part, kParts);
    const std::filesystem::path path = folder / std::to_string(part);
    if (std::filesystem::exists(path)) continue;
    std::this_thread::sleep_for(part_time);
    std::ofstream(path) << "part " << part << "\n";
  }
  progress(kParts, kParts);
}

// `lockstep toy read`: a sentence, as the text of an evaluation has it.
std::optional<Failure> read_sentence(const TaskInput& input) {
  const torch::NoGradGuard no_grad;
  const ToyWorkload workload;
  const Status same_table = check_frozen(input.progress, workload, input.weights_path);
  if (!same_table.ok()) return Failure{ExitCode::kUsage, same_table.error().message};
  NamedTensors model = parameters_of(workload);
  for (const NamedTensor& buffer : workload.buffers()) model.push_back(buffer);
  for (const NamedTensor& tensor : model) {
    const auto found = std::find_if(input.weights.begin(), input.weights.end(),
                                    [&](const NamedTensor& weight) { return weight.name == tensor.name; });
    if (found == input.weights.end()) {
      return Failure{ExitCode::kCheckpoint, input.weights_path + " has no " + tensor.name};
    }
    tensor.tensor.copy_(found->tensor);
  }
  const int64_t sentence = options_of<ReadOptions>(input.config).sentence;
  const Result<ToyReading> reading = workload.read(sentence, input.device);
  if (!reading.ok()) return Failure{ExitCode::kData, reading.error().message};
  const std::string line = ToyWorkload::line_of(sentence, *reading);
  const Status written = input.out(line.data(), line.size());
  if (!written.ok()) return Failure{ExitCode::kCheckpoint, written.error().message};
  return std::nullopt;
}

void toy(PluginWorkload& workload) {
  workload.flags.name = "toy";
  workload.flags.summary = "each part of the seam, small enough to follow by hand";
  workload.flags.data = "sentences that it makes up itself";
  workload.flags.example = "lockstep run toy --plugin toy.so --nproc 2";
  workload.flags.set_defaults = [](RunConfig& config) { config.options = Options(); };
  workload.flags.add_flags = [](FlagTableBuilder& table) {
    table.group("Toy");
    table.integer("milliseconds", FlagScope::kThisProcess, 0, 1000, &Options::milliseconds,
                  "that each step takes longer");
    table.text("prepared", FlagScope::kThisProcess, "a folder", &Options::prepared, "twenty parts are prepared in it");
    table.integer("part_milliseconds", FlagScope::kThisProcess, 0, 1000, &Options::part_milliseconds,
                  "that each part takes");
    table.integer("table_pitch", FlagScope::kThisProcess, 1, 1000, &Options::table_pitch,
                  "of its frozen table of words");
  };
  workload.flags.tasks = {{.name = "read",
                           .summary = "reads the number of a sentence",
                           .examples = {"lockstep toy read --plugin toy.so --checkpoint RUN --sentence 5"},
                           .set_defaults = [](RunConfig& config) { config.task.options = ReadOptions(); },
                           .add_flags =
                               [](FlagTableBuilder& table) {
                                 table.group("Sentence");
                                 table.integer("sentence", FlagScope::kThisProcess, 0, kCountMax,
                                               &ReadOptions::sentence, "its number");
                               },
                           .workload_flags = {},
                           .check = {}}};
  workload.run_task = read_sentence;
  workload.make = [](const RunConfig& config, at::Device, const OnDataProgress& on_progress) -> WorkloadOrFailure {
    const auto& options = options_of<Options>(config);
    if (!options.prepared.empty()) {
      prepare(options.prepared, std::chrono::milliseconds(options.part_milliseconds), on_progress);
    }
    const ToyOptions made{.phase_epochs = 10, .table_pitch = options.table_pitch, .training = config.training};
    return std::unique_ptr<Workload>(std::make_unique<SlowToy>(made, options.milliseconds));
  };
}

}  // namespace

LOCKSTEP_PLUGIN(toy)
