// The workload of the loop's tests (tests/runner/loop/toy_workload.h) as a plugin, for tests that kill whole programs.
#include <chrono>
#include <filesystem>
#include <fstream>
#include <memory>
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

#define OPTION(member)                                                                  \
  [](auto& config) -> auto& {                                                           \
    using Config = std::remove_reference_t<decltype(config)>;                           \
    using Wanted = std::conditional_t<std::is_const_v<Config>, const Options, Options>; \
    return std::any_cast<Wanted&>(config.options).member;                               \
  }

void toy(PluginWorkload& workload) {
  workload.flags.name = "toy";
  workload.flags.summary = "each part of the seam, small enough to follow by hand";
  workload.flags.set_defaults = [](RunConfig& config) { config.options = Options(); };
  workload.flags.add_flags = [](FlagTableBuilder& table) {
    table.group("Toy");
    table.integer("milliseconds", FlagScope::kThisProcess, 0, 1000, OPTION(milliseconds),
                  "that each step takes longer");
    table.text("prepared", FlagScope::kThisProcess, "a folder", OPTION(prepared), "twenty parts are prepared in it");
    table.integer("part_milliseconds", FlagScope::kThisProcess, 0, 1000, OPTION(part_milliseconds),
                  "that each part takes");
  };
  workload.make = [](const RunConfig& config, at::Device, const OnDataProgress& on_progress) -> WorkloadOrFailure {
    const auto& options = std::any_cast<const Options&>(config.options);
    if (!options.prepared.empty()) {
      prepare(options.prepared, std::chrono::milliseconds(options.part_milliseconds), on_progress);
    }
    return std::unique_ptr<Workload>(std::make_unique<SlowToy>(ToyOptions{.phase_epochs = 10}, options.milliseconds));
  };
}

}  // namespace

LOCKSTEP_PLUGIN(toy)
