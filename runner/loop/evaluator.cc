#include "runner/loop/evaluator.h"

#include <torch/types.h>

#include <map>
#include <string>
#include <utility>

#include "runner/contract/exit_code.h"
#include "runner/dist/collectives.h"
#include "runner/dist/fault.h"
#include "runner/dist/process_group.h"
#include "runner/loop/device.h"
#include "runner/loop/joint_work.h"

namespace lockstep {
namespace {

using Parts = std::map<std::string, std::string>;

uint64_t bytes_of(const Parts& parts) {
  uint64_t bytes = 0;
  for (const auto& [name, part] : parts) bytes += part.size();
  return bytes;
}

// One line of JSON with the name and length of each part, then the parts' bytes.
std::string packed(const Parts& parts) {
  Json list = Json::array();
  std::string bytes;
  for (const auto& [name, part] : parts) {
    list.push_back({name, part.size()});
    bytes += part;
  }
  return dump_line(list) + "\n" + bytes;
}

void unpack_behind(const std::string& text, Parts& parts) {
  const size_t end = text.find('\n');
  size_t begin = end + 1;
  for (const Json& entry : Json::parse(text.substr(0, end))) {
    const auto size = entry.at(1).get<size_t>();
    parts[entry.at(0).get<std::string>()].append(text, begin, size);
    begin += size;
  }
}

// Collective. On rank 0 the parts of all ranks, elsewhere their names.
Parts parts_of_all(Parts mine, ProcessGroup& group, PhaseClock& clock) {
  Parts all;
  for (const auto& [name, part] : mine) all[name];
  for (const std::string& text : bytes_to_rank_zero(group, packed(mine), [&] { clock.progress(); })) {
    unpack_behind(text, all);
  }
  return all;
}

// The sums over all ranks; has_parts: any rank has given one.
std::vector<MetricSum> totals_of(std::vector<MetricSum> mine, ProcessGroup& group, bool& has_parts) {
  std::vector<double> row;
  for (const MetricSum& m : mine) {
    row.push_back(m.sum);
    row.push_back(m.count);
  }
  row.push_back(has_parts ? 1.0 : 0.0);
  const std::vector<double> totals = sum_over_ranks(group, row);
  for (size_t i = 0; i < mine.size(); ++i) {
    mine[i].sum = totals[2 * i];
    mine[i].count = totals[2 * i + 1];
  }
  has_parts = totals.back() > 0.0;
  return mine;
}

}  // namespace

EvaluationOutcome evaluate_on_all_ranks(ProcessGroup& group, const EvaluationContext& context) {
  const RankContext& rank = context.rank;
  JointWork work(group, context.stop, rank.clock, "during an evaluation");
  const auto loss = [&](const DeviceBatch& batch) {
    const AutocastScope autocast(rank.precision.precision, rank.device);
    return rank.workload.loss(batch);
  };
  Parts my_parts;
  const torch::NoGradGuard no_grad;
  Result<std::vector<MetricSum>> mine = rank.workload.evaluate(
      {.rank = group.rank(),
       .world_size = group.world_size(),
       .seed = rank.config.training.seed,
       .phase = context.phase,
       .goes_on = [&] { return work.goes_on(); },
       .device = rank.device,
       .samples_at_once = context.samples_at_once,
       .loss = loss,
       .give_part = [&](const std::string& name, const std::string& bytes) { my_parts[name] += bytes; }});
  if (!mine.ok()) throw RunFault(ExitCode::kData, mine.error().message);
  if (const uint64_t bytes = bytes_of(my_parts); bytes > kPartBytesMax) {
    throw RunFault(ExitCode::kData, "rank " + std::to_string(group.rank()) + " has " + std::to_string(bytes) +
                                        " bytes for rank 0's files of one evaluation, and the limit is " +
                                        std::to_string(kPartBytesMax) + ": the workload must give fewer (give_part)");
  }
  const JointEnd end = work.end();
  EvaluationOutcome outcome{.is_complete = end.is_complete, .metrics = {}, .requests = end.requests, .parts = {}};
  if (!end.is_complete) return outcome;
  const PhaseScope waiting(rank.clock, Phase::kWaiting);
  bool has_parts = !my_parts.empty();
  outcome.metrics = rank.workload.figures(totals_of(std::move(*mine), group, has_parts));
  if (has_parts) outcome.parts = parts_of_all(std::move(my_parts), group, rank.clock);
  return outcome;
}

}  // namespace lockstep
