#include "runner/telemetry/time_split.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <utility>

namespace lockstep {

namespace {

constexpr int64_t kTenths = 1000;  // 100 %, in tenths of a percent

// Rounds by the largest-remainder method, because rounding each row separately could give sums of 99.9 or 100.1.
void distribute_percents(std::vector<TimeSplitRow>& rows, double total) {
  struct Rest {
    size_t row;
    double rest;
  };
  std::vector<Rest> rests;
  std::vector<int64_t> tenths;
  int64_t left = kTenths;
  for (size_t i = 0; i < rows.size(); ++i) {
    const double exact = rows[i].seconds / total * static_cast<double>(kTenths);
    tenths.push_back(static_cast<int64_t>(std::floor(exact)));
    rests.push_back({i, exact - std::floor(exact)});
    left -= tenths.back();
  }
  std::stable_sort(rests.begin(), rests.end(), [](const Rest& a, const Rest& b) { return a.rest > b.rest; });
  for (size_t i = 0; left > 0 && i < rests.size(); ++i, --left) ++tenths[rests[i].row];
  for (size_t i = 0; i < rows.size(); ++i) rows[i].percent = static_cast<double>(tenths[i]) / 10.0;
}

std::string computing_sentence(const RunShape& shape) {
  if (!shape.on_gpu)
    return "computing (forward and backward) on the CPU; a GPU would help most, then more cores: --threads per rank, "
           "or more ranks with --nproc";
  if (shape.precision == Precision::kFp32)
    return "computing (forward and backward) in fp32; --precision tf32 or bf16 would help";
  if (shape.precision == Precision::kTf32)
    return "computing (forward and backward) in tf32; --precision bf16 would help";
  return "computing (forward and backward); more GPUs (--nproc) would help, or a larger --batch_size when the GPU is "
         "not busy";
}

std::string sentence_of(Phase phase, const RunShape& shape) {
  switch (phase) {
    case Phase::kStartup:
      return "start-up; a longer run (--num_epochs) would spread it";
    case Phase::kDataWait:
      return "waiting for data; more cores for each rank (--threads, or a smaller --nproc) would help";
    case Phase::kForward:
    case Phase::kBackward:
    case Phase::kDevice:
      return computing_sentence(shape);
    case Phase::kGradSync:
      return "the exchange of gradients between " + std::to_string(shape.world_size) +
             " ranks; fewer exchanges per sample (a larger --batch_size or --grad_accum_steps) would help";
    case Phase::kOptimizer:
      return "the optimizer; fewer updates per epoch (a larger --batch_size) would help";
    case Phase::kValidation:
      return "evaluation; a larger --eval_every or fewer --eval_users would help";
    case Phase::kCheckpointStall:
      return "waiting for checkpoints; a larger --checkpoint_every would help";
    case Phase::kWaiting:
      return "waiting for other ranks; the log says which rank was late or lost, no flag helps";
    case Phase::kOther:
      return "work outside the phases, logging above all; a larger --log_every would help";
  }
  return "";
}

}  // namespace

std::vector<TimeSplitRow> time_split(const PhaseSeconds& seconds) {
  std::vector<TimeSplitRow> rows;
  for (size_t i = 0; i < kPhaseCount; ++i)
    if (seconds.seconds[i] > 0.0) rows.push_back({static_cast<Phase>(i), seconds.seconds[i], 0.0});
  std::stable_sort(rows.begin(), rows.end(),
                   [](const TimeSplitRow& a, const TimeSplitRow& b) { return a.seconds > b.seconds; });
  if (!rows.empty()) distribute_percents(rows, seconds.total());
  return rows;
}

std::string what_bounded(const PhaseSeconds& seconds, const RunShape& shape) {
  const double total = seconds.total();
  if (total <= 0.0) return "no time was measured";
  PhaseSeconds grouped = seconds;  // kForward collects all computing: forward, backward, and waiting for the device
  for (const Phase phase : {Phase::kBackward, Phase::kDevice}) {
    grouped[Phase::kForward] += std::exchange(grouped[phase], 0.0);
  }
  const auto largest = std::max_element(grouped.seconds.begin(), grouped.seconds.end());
  const auto phase = static_cast<Phase>(largest - grouped.seconds.begin());
  std::array<char, 64> head{};
  std::snprintf(head.data(), head.size(), "%.0f%% of the time went into ", *largest / total * 100.0);
  return head.data() + sentence_of(phase, shape);
}

}  // namespace lockstep
