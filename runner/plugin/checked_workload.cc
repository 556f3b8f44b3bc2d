#include "runner/plugin/checked_workload.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <map>
#include <sstream>
#include <stdexcept>

#include "runner/base/plural.h"
#include "runner/dist/fault.h"

namespace lockstep {
namespace {

// "Float [4, 8]"
std::string shape_of(const at::Tensor& tensor) {
  if (!tensor.defined()) return "undefined";
  std::ostringstream text;
  text << c10::toString(tensor.scalar_type()) << " " << tensor.sizes();
  return text.str();
}

// Reports what a plugin's BatchSource does wrong.
class CheckedSource final : public BatchSource {
 public:
  CheckedSource(std::unique_ptr<BatchSource> source, std::string context)
      : source_(std::move(source)), context_(std::move(context)) {}

  [[nodiscard]] int64_t steps(int64_t epoch) override {
    const int64_t steps = source_->steps(epoch);
    if (steps >= 1) return steps;
    throw RunFault(ExitCode::kUsage, context_ + "epoch " + std::to_string(epoch) + " has " + std::to_string(steps) +
                                         " batches, expected at least 1");
  }
  [[nodiscard]] std::vector<int64_t> batch(int64_t epoch, int64_t index) override {
    std::vector<int64_t> samples = source_->batch(epoch, index);
    if (!samples.empty()) return samples;
    throw RunFault(ExitCode::kUsage, context_ + "batch " + std::to_string(index) + " of epoch " +
                                         std::to_string(epoch) + " has no samples, expected at least 1");
  }
  [[nodiscard]] int64_t cost(int64_t sample) const override { return source_->cost(sample); }

 private:
  std::unique_ptr<BatchSource> source_;
  std::string context_;
};

class CheckedWorkload final : public Workload {
 public:
  CheckedWorkload(std::unique_ptr<Workload> workload, const std::string& name, std::string path, std::string sha256)
      : workload_(std::move(workload)), path_(std::move(path)), sha256_(std::move(sha256)) {
    info_ = call("info", [&] { return workload_->info(); });
    info_.name = name;
    if (info_.loss_terms.empty()) refuse("info() names no loss term: at least one is needed");
    groups_ = call("groups", [&] { return workload_->groups(); });
    check_first_groups();
    for (const TrainingPhase& phase : info_.phases) check_phase(phase);
  }

  [[nodiscard]] const WorkloadInfo& info() const override { return info_; }
  [[nodiscard]] std::vector<ParameterGroup> groups() const override {
    check_groups();
    return groups_;
  }
  [[nodiscard]] NamedTensors buffers() const override {
    return call("buffers", [&] { return workload_->buffers(); });
  }
  [[nodiscard]] std::vector<FrozenInput> frozen() const override {
    return call("frozen", [&] { return workload_->frozen(); });
  }
  void initialize(uint64_t seed) override {
    call("initialize", [&] { workload_->initialize(seed); });
    check_groups();
  }
  Status enter_phase(int64_t phase, const std::function<bool()>& goes_on) override {
    return call("enter_phase", [&] { return workload_->enter_phase(phase, goes_on); });
  }
  [[nodiscard]] Json shared_facts() const override {
    Json facts = call("shared_facts", [&] { return workload_->shared_facts(); });
    facts["sha256 of the file of --plugin"] = sha256_;
    return facts;
  }
  [[nodiscard]] double flops_per_sample() const override {
    return call("flops_per_sample", [&] { return workload_->flops_per_sample(); });
  }
  [[nodiscard]] std::vector<std::pair<std::string, std::string>> describe() const override {
    auto rows = call("describe", [&] { return workload_->describe(); });
    constexpr size_t kDigits = 12;
    rows.emplace_back("plugin", path_ + " (sha256 " + sha256_.substr(0, kDigits) + "…)");
    return rows;
  }
  [[nodiscard]] Result<std::unique_ptr<BatchSource>> batches(const BatchOptions& options) const override {
    auto source = call("batches", [&] { return workload_->batches(options); });
    const std::string split = options.split == Split::kTrain ? "training" : "validation";
    const std::string context = "batches(): of the " + split + " split, ";
    if (!source.ok()) return Error{source.error().code, context + source.error().message};
    if (*source == nullptr) refuse(context + "there is neither a BatchSource nor an Error");
    return std::unique_ptr<BatchSource>(
        std::make_unique<CheckedSource>(std::move(*source), "--plugin " + path_ + ": " + context));
  }
  [[nodiscard]] Result<HostBatch> fetch(const BatchShare& share) const override {
    Result<HostBatch> batch = call("fetch", [&] { return workload_->fetch(share); });
    if (!batch.ok()) return batch;
    const std::string context = "--plugin " + path_ + ": fetch() gave ";
    if (batch->weights.size() != info_.loss_terms.size()) {
      return invalid(context + plural(batch->weights.size(), "weight") +
                     ", expected one for each loss term: " + std::to_string(info_.loss_terms.size()));
    }
    for (const double weight : batch->weights) {
      if (std::isfinite(weight) && weight >= 0.0) continue;
      return invalid(context + "the weight " + std::to_string(weight) + ", expected a finite one, not below 0");
    }
    for (const NamedTensor& entry : batch->tensors) {
      if (!entry.tensor.defined()) return invalid(context + "the tensor " + entry.name + " undefined");
    }
    return batch;
  }
  [[nodiscard]] NamedTensors upload(const HostBatch& batch, at::Device device) const override {
    return call("upload", [&] { return workload_->upload(batch, device); });
  }
  [[nodiscard]] std::vector<at::Tensor> loss(const DeviceBatch& batch) override {
    check_groups();
    if (batch.is_training && batch.share.step == 0 && !is_compared_) {
      is_compared_ = true;
      compare_with_halves(batch);
    }
    return checked_loss(batch);
  }
  [[nodiscard]] std::string memory_advice() const override {
    return call("memory_advice", [&] { return workload_->memory_advice(); });
  }
  at::Tensor regularization() override {
    return call("regularization", [&] { return workload_->regularization(); });
  }
  Result<std::vector<MetricSum>> evaluate(const EvaluationShard& shard) override {
    EvaluationShard checked = shard;
    checked.data = this;
    return call("evaluate", [&] { return workload_->evaluate(checked); });
  }
  [[nodiscard]] EvaluationMetrics figures(const std::vector<MetricSum>& totals) const override {
    EvaluationMetrics figures = call("figures", [&] { return workload_->figures(totals); });
    check_deciding(info_.best, "best", figures);
    if (info_.plateau) check_deciding(*info_.plateau, "plateau", figures);
    return figures;
  }
  std::vector<std::string> evaluation_lines(const EvaluationReport& report) override {
    return call("evaluation_lines", [&] { return workload_->evaluation_lines(report); });
  }
  [[nodiscard]] std::string log_header() const override {
    return call("log_header", [&] { return workload_->log_header(); });
  }
  [[nodiscard]] std::string log_line(const EvaluationReport& report) const override {
    return call("log_line", [&] { return workload_->log_line(report); });
  }
  std::vector<std::string> outputs(const EvaluationReport& report) override {
    return call("outputs", [&] { return workload_->outputs(report); });
  }
  [[nodiscard]] OutputContent output(const std::string& name, const OutputState& state) const override {
    return call("output", [&] { return workload_->output(name, state); });
  }
  [[nodiscard]] Result<NamedTensors> weights_of_file(NamedTensors file) const override {
    return call("weights_of_file", [&] { return workload_->weights_of_file(std::move(file)); });
  }
  Result<TrainingSoFar> restore_from_file(const Json& fields) override {
    return call("restore_from_file", [&] { return workload_->restore_from_file(fields); });
  }
  [[nodiscard]] Json progress_state() const override {
    return call("progress_state", [&] { return workload_->progress_state(); });
  }
  Status restore_progress(const Json& state) override {
    return call("restore_progress", [&] { return workload_->restore_progress(state); });
  }

 private:
  [[noreturn]] void refuse(const std::string& what) const {
    throw RunFault(ExitCode::kUsage, "--plugin " + path_ + ": " + what);
  }

  // Exceptions that are not the plugin's fault (a lost peer, too little memory, a broken device) are rethrown
  // unchanged.
  template <typename Function>
  auto call(const char* name, const Function& function) const -> decltype(function()) {
    const std::string threw = "--plugin " + path_ + ": " + name + "() threw ";
    try {
      return function();
    } catch (const c10::Error& e) {
      if (classify_fault(e).code != ExitCode::kCrash) throw;
      throw std::runtime_error(threw + "an error of torch: " + e.what_without_backtrace());
    } catch (const std::exception& e) {
      if (classify_fault(e).code != ExitCode::kCrash) throw;
      throw std::runtime_error(threw + "an exception: " + e.what());
    } catch (...) {
      throw std::runtime_error(threw + "something that is no std::exception");
    }
  }

  [[nodiscard]] std::vector<at::Tensor> checked_loss(const DeviceBatch& batch) const {
    std::vector<at::Tensor> sums = call("loss", [&] { return workload_->loss(batch); });
    if (sums.size() != info_.loss_terms.size()) {
      refuse("loss() gave " + plural(sums.size(), "sum") +
             ", expected one for each loss term: " + std::to_string(info_.loss_terms.size()));
    }
    for (size_t term = 0; term < sums.size(); ++term) {
      const at::Tensor& sum = sums[term];
      const std::string name = "loss(): the term " + info_.loss_terms[term].name;
      if (!sum.defined() || sum.numel() != 1 || sum.scalar_type() != at::kFloat) {
        refuse(name + " is " + shape_of(sum) + ", expected a scalar of Float: the sum over the batch");
      }
    }
    return sums;
  }

  // Refuses a loss that is a mean: training would go well with it, and its loss would grow with the number of ranks. A
  // new run's first batch is compared with its two halves, dropout off. Terms that are only reported are left alone.
  void compare_with_halves(const DeviceBatch& batch) const {
    const size_t samples = batch.share.samples.size();
    if (samples < 2 || batch.tensors.empty()) return;
    const auto values_of = [&](size_t begin, size_t end) {
      DeviceBatch part{.share = batch.share, .tensors = {}, .is_training = false};
      part.share.first_slot += static_cast<int64_t>(begin);
      part.share.samples.assign(batch.share.samples.begin() + static_cast<std::ptrdiff_t>(begin),
                                batch.share.samples.begin() + static_cast<std::ptrdiff_t>(end));
      const Result<HostBatch> fetched = fetch(part.share);
      if (!fetched.ok()) throw RunFault(ExitCode::kData, fetched.error().message);
      part.tensors = upload(*fetched, batch.tensors.front().tensor.device());
      std::vector<double> values;
      for (const at::Tensor& sum : checked_loss(part)) values.push_back(sum.item<double>());
      return values;
    };
    const size_t half = samples / 2;
    const std::vector<double> whole = values_of(0, samples);
    const std::vector<double> first = values_of(0, half), second = values_of(half, samples);
    for (size_t term = 0; term < whole.size(); ++term) {
      if (info_.loss_terms[term].coefficient == 0.0) continue;
      const double found = whole[term], a = first[term], b = second[term];
      const double sum = a + b;
      const double part = static_cast<double>(half) / static_cast<double>(samples);
      const double mean = part * a + (1.0 - part) * b;
      // Losses of both signs may cancel out, and then nothing tells a sum from a mean.
      const bool differ = std::abs(sum - mean) > 0.1 * (std::abs(a) + std::abs(b));
      if (!differ || !(std::abs(found - mean) < std::abs(found - sum))) continue;
      refuse("loss(): the term " + info_.loss_terms[term].name + " is " + std::to_string(found) + " for " +
             std::to_string(samples) + " samples, and " + std::to_string(a) + " and " + std::to_string(b) +
             " for their halves: a mean, expected the sum over the samples (at::Reduction::Sum)");
    }
  }

  // Figures that the loop adds begin with "train_" (kTrainLoss).
  void check_deciding(const DecidingFigure& deciding, const char* field, const EvaluationMetrics& figures) const {
    if (deciding.name.starts_with("train_") || has_metric(figures, deciding.name)) return;
    std::string names;
    for (const auto& [name, value] : figures) names += name + ", ";
    refuse(std::string("info(): ") + field + ".name is \"" + deciding.name +
           "\", expected a figure of the evaluation: " + names + kTrainLoss);
  }

  void check_first_groups() {
    std::map<const void*, std::string> names;
    for (const ParameterGroup& group : groups_) {
      for (const NamedTensor& entry : group.parameters) {
        const std::string parameter = "groups(): the parameter " + entry.name;
        if (!entry.tensor.defined()) refuse(parameter + " is an undefined tensor");
        if (!entry.tensor.is_leaf() || !entry.tensor.requires_grad()) {
          refuse(parameter + " is not trained: expected a leaf that requires a gradient (lockstep::trained makes one)");
        }
        if (entry.tensor.scalar_type() != at::kFloat) {
          refuse(parameter + " is " + shape_of(entry.tensor) +
                 ", expected Float: --precision decides what is computed in");
        }
        const auto [same, is_new] = names.emplace(entry.tensor.unsafeGetTensorImpl(), entry.name);
        if (!is_new && same->second != entry.name) {
          refuse(parameter + " is the same tensor as " + same->second + ": it must be there once");
        }
        if (!shapes_.emplace(entry.name, shape_of(entry.tensor)).second) {
          refuse(parameter + " is there twice: each needs a name of its own");
        }
      }
    }
    if (shapes_.empty()) refuse("groups() has no parameter: there is nothing to train");
  }

  // A name that no group has would freeze nothing, and the group that was meant would be trained.
  void check_phase(const TrainingPhase& phase) const {
    const std::string context = "info(): the phase " + phase.name + " freezes ";
    const auto is_frozen = [&](const ParameterGroup& group) {
      return std::find(phase.frozen.begin(), phase.frozen.end(), group.name) != phase.frozen.end();
    };
    std::string names;
    for (const ParameterGroup& group : groups_) names += (names.empty() ? "\"" : ", \"") + group.name + "\"";
    for (const std::string& name : phase.frozen) {
      if (std::any_of(groups_.begin(), groups_.end(), [&](const auto& group) { return group.name == name; })) continue;
      refuse(context + "\"" + name + "\", which is no group of groups(): expected some of " + names);
    }
    const auto is_left = [&](const auto& group) { return !group.parameters.empty() && !is_frozen(group); };
    if (std::any_of(groups_.begin(), groups_.end(), is_left)) return;
    refuse(context + "all groups that have parameters (of " + names + "): expected at least one that is trained");
  }

  // The optimizer, the reducer and the checkpoints hold the tensors of the first call, so later calls must return the
  // same ones.
  void check_groups() const {
    const auto now = call("groups", [&] { return workload_->groups(); });
    constexpr const char* kFixed =
        "; a run's parameters are made once, with the workload, and only their values change";
    if (now.size() != groups_.size()) {
      refuse("groups() gave " + plural(groups_.size(), "group") + " at the start and gives " +
             std::to_string(now.size()) + " now" + kFixed);
    }
    for (size_t i = 0; i < now.size(); ++i) {
      const NamedTensors& before = groups_[i].parameters;
      const NamedTensors& after = now[i].parameters;
      const std::string group = "groups(): " + (groups_[i].name.empty() ? "it" : "the group " + groups_[i].name);
      if (after.size() != before.size()) {
        refuse(group + " had " + plural(before.size(), "parameter") + " at the start and has " +
               std::to_string(after.size()) + " now" + kFixed);
      }
      for (size_t p = 0; p < after.size(); ++p) check_parameter(before[p], after[p], kFixed);
    }
  }

  void check_parameter(const NamedTensor& before, const NamedTensor& after, const char* fixed) const {
    if (after.name != before.name) {
      refuse("groups(): the parameter " + before.name + " of the start is called " + after.name + " now" + fixed);
    }
    const std::string& first = shapes_.at(before.name);
    const std::string shape = shape_of(after.tensor);
    if (shape != first) {
      refuse("groups(): the parameter " + before.name + " was " + first + " at the start and is " + shape + " now" +
             fixed);
    }
    if (!after.tensor.is_same(before.tensor)) {
      refuse("groups(): the parameter " + before.name + " is another tensor than at the start" + fixed);
    }
  }

  std::unique_ptr<Workload> workload_;
  std::string path_;
  std::string sha256_;
  WorkloadInfo info_;
  std::vector<ParameterGroup> groups_;         // as they were at the start
  bool is_compared_ = false;                   // compare_with_halves was called
  std::map<std::string, std::string> shapes_;  // "Float [4, 8]" by the parameter's name, at the start
};

}  // namespace

std::unique_ptr<Workload> make_checked_workload(std::unique_ptr<Workload> workload, const std::string& name,
                                                std::string path, std::string sha256) {
  return std::make_unique<CheckedWorkload>(std::move(workload), name, std::move(path), std::move(sha256));
}

}  // namespace lockstep
