// A plugin that does what --fault says: each a mistake in a plugin, or an error that is not its own. Its model is w·x.
#include <c10/util/Exception.h>
#include <torch/types.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "all_headers.h"  // each that is installed; made by the test

namespace {

using namespace lockstep;

struct Options {
  std::string fault;
};

bool device_is_broken = false;

// Like memory of the device: freeing it after a fault of the device may end the process.
class DeviceSource final : public BatchSource {
 public:
  explicit DeviceSource(std::unique_ptr<BatchSource> source) : source_(std::move(source)) {}
  ~DeviceSource() override {
    if (device_is_broken) std::abort();
  }
  int64_t steps(int64_t epoch) override { return source_->steps(epoch); }
  std::vector<int64_t> batch(int64_t epoch, int64_t index) override { return source_->batch(epoch, index); }

 private:
  std::unique_ptr<BatchSource> source_;
};

class EmptySource final : public BatchSource {
 public:
  explicit EmptySource(int64_t steps) : steps_(steps) {}
  int64_t steps(int64_t /*epoch*/) override { return steps_; }
  std::vector<int64_t> batch(int64_t /*epoch*/, int64_t /*index*/) override { return {}; }

 private:
  int64_t steps_;
};

class Faulty final : public Workload {
 public:
  explicit Faulty(std::string fault) : fault_(std::move(fault)) {
    info_.name = "another_name";  // than the flags': it counts for nothing
    if (fault_ == "version") info_.version = 2;
    if (fault_ == "unknown_group") info_.phases = {{.name = "first", .frozen = {"ww"}}};
    if (fault_ == "all_frozen") info_.phases = {{.name = "first"}, {.name = "second", .frozen = {"w"}}};
    if (fault_ != "no_term") info_.loss_terms = {{.name = "loss"}};
    has_figure_ = fault_.ends_with("beside_a_figure");
    if (has_figure_) info_.loss_terms.push_back({.name = "figure", .coefficient = 0.0});
    if (fault_ == "double") w_ = torch::zeros({4}, torch::kDouble).requires_grad_();
    info_.best = {.name = fault_ == "best" ? "valid_mse" : "valid_loss", .direction = Direction::kLower};
    if (fault_ == "no_leaf") w_ = w_ * 2.0;
  }

  const WorkloadInfo& info() const override { return info_; }
  std::vector<ParameterGroup> groups() const override {
    if (fault_ == "no_parameter") return {};
    std::vector<ParameterGroup> groups = {
        {.name = fault_ == "all_frozen" || fault_ == "unknown_group" ? "w" : "", .parameters = {{"w", w_}}}};
    if (fault_ == "one_name") groups[0].parameters.push_back({"w", torch::zeros({1}).requires_grad_()});
    if (fault_ == "twice") groups[0].parameters.push_back({"v", w_});
    if (fault_ == "used_by_one_rank" || fault_.starts_with("unused"))
      groups[0].parameters.push_back({"unused", unused_});
    const bool later = steps_ > 2;
    if (fault_ == "count" && later) groups[0].parameters.push_back({"b", torch::zeros({1}).requires_grad_()});
    if (fault_ == "groups" && later) groups.push_back({.name = "more", .parameters = {}});
    if (fault_ == "shape" && later) groups[0].parameters[0].tensor = torch::zeros({5}).requires_grad_();
    if (fault_ == "dtype" && later) {
      groups[0].parameters[0].tensor = torch::zeros({4}, torch::kDouble).requires_grad_();
    }
    if (fault_ == "another" && later) groups[0].parameters[0].tensor = torch::zeros({4}).requires_grad_();
    if (fault_ == "name" && later) groups[0].parameters[0].name = "v";
    return groups;
  }
  void initialize(uint64_t) override {
    if (fault_ == "throws_in_initialize") throw std::runtime_error("no values today");
  }
  double flops_per_sample() const override { return 24.0; }
  std::vector<std::pair<std::string, std::string>> describe() const override { return {}; }
  Result<std::unique_ptr<BatchSource>> batches(const BatchOptions& options) const override {
    const bool validates = options.split == Split::kValidation;
    if (fault_ == "no_source" || (validates && fault_ == "no_valid_source")) return std::unique_ptr<BatchSource>();
    if (fault_ == "no_steps" || fault_ == "no_samples" || (validates && fault_ == "no_valid_steps")) {
      return std::unique_ptr<BatchSource>(std::make_unique<EmptySource>(fault_ == "no_samples" ? 1 : 0));
    }
    if (fault_ == "no_validation" && validates) {
      return InOrder::create({.first = 16, .num_samples = 0, .global_batch = options.global_batch});
    }
    auto sampler = Sampler::create({.seed = options.seed, .num_samples = 16, .global_batch = options.global_batch});
    if (!sampler.ok()) return sampler;
    return std::unique_ptr<BatchSource>(std::make_unique<DeviceSource>(std::move(*sampler)));
  }
  Result<HostBatch> fetch(const BatchShare& share) const override {
    if (fault_ == "throws_in_fetch") throw std::runtime_error("no batch today");
    if (fault_ == "no_memory_in_fetch") throw std::bad_alloc();
    if (fault_ == "error_in_fetch") return invalid("the disk has no batch");
    const auto n = static_cast<int64_t>(share.samples.size());
    HostBatch batch{.tensors = {{"x", torch::ones({n, 4})}}, .weights = {static_cast<double>(n)}};
    if (fault_ == "weights" || has_figure_) batch.weights.push_back(static_cast<double>(n));
    if (fault_ == "nan_weight") batch.weights[0] = std::nan("");
    if (fault_ == "undefined_tensor") batch.tensors[0].tensor = at::Tensor();
    return batch;
  }
  std::vector<at::Tensor> loss(const DeviceBatch& batch) override {
    ++steps_;
    if (fault_ == "throws_in_loss") throw std::runtime_error("no loss today");
    if (fault_ == "throws_a_number") throw 7;
    if (fault_ == "device") {
      device_is_broken = true;
      throw c10::AcceleratorError({__func__, __FILE__, __LINE__}, 700, "CUDA error: an illegal memory access");
    }
    if (fault_ == "torch_error") return {torch::ones({3}).matmul(w_)};
    const at::Tensor sum = (batch["x"].matmul(w_) - 1.0).square().sum();
    if (fault_ == "mean") return {sum / batch["x"].size(0)};
    if (fault_ == "cancels_out") {  // the sum of losses of both signs is as small as their mean, and taken for it
      double signs = 0.0;
      const auto n = static_cast<int64_t>(batch.share.samples.size());
      for (int64_t i = 0; i < n; ++i) signs += batch.share.first_slot + i < 2 ? 1.0 : -1.0001;
      return {batch["x"].matmul(w_).sum() + (n == 4 ? -1e-4 : signs)};
    }
    if (fault_ == "missing_tensor") return {batch["y"].sum()};
    if (fault_ == "detached") return {sum.detach()};
    if (fault_ == "used_by_one_rank" && batch.share.first_slot == 0) return {sum + unused_.sum()};
    if (fault_ == "sums") return {sum, sum};
    if (fault_ == "mean_beside_a_figure") return {sum, sum.detach() / 4.0};
    if (has_figure_) return {sum, sum.detach()};
    if (fault_ == "undefined") return {at::Tensor()};
    if (fault_ == "no_scalar") return {torch::stack({sum, sum})};
    return {sum};
  }
  std::vector<std::string> evaluation_lines(const EvaluationReport& report) override {
    if (fault_ == "missing_figure") return {std::to_string(metric_value(report.metrics, "valid_mse"))};
    return {};
  }

 private:
  std::string fault_;
  WorkloadInfo info_;
  int64_t steps_ = 0;
  bool has_figure_ = false;  // a second term, which is only reported
  at::Tensor unused_ = torch::zeros({2}).requires_grad_();
  at::Tensor w_ = torch::zeros({4}).requires_grad_();
};

// A flag by the name that is in this variable, which is one that it must not have.
void add_flag_of(const char* variable, FlagTableBuilder& table) {
  const char* const name = std::getenv(variable);
  if (name == nullptr) return;
  Flag& flag = table.custom(name, FlagScope::kThisProcess, "a word", "one too many");
  flag.set = [](std::string_view, RunConfig&) { return true; };
  flag.get = [](const RunConfig&) { return std::string(); };
}

void faulty(PluginWorkload& workload) {
  workload.flags.name = "faulty";
  workload.flags.summary = "what a plugin must not do";
  workload.flags.set_defaults = [](RunConfig& config) {
    if (std::getenv("FAULTY_WITHOUT_OPTIONS") == nullptr) config.options = Options();
  };
  workload.flags.add_flags = [](FlagTableBuilder& table) {
    table.group("Faults");
    table.text("fault", FlagScope::kThisProcess, "a word", &Options::fault, "which");
    add_flag_of("FAULTY_FLAG", table);
  };
  workload.flags.tasks = {{.name = "task", .summary = "throws", .examples = {"lockstep faulty task"}}};
  workload.flags.tasks[0].add_flags = [](FlagTableBuilder& table) { add_flag_of("FAULTY_TASK_FLAG", table); };
  workload.run_task = [](const TaskInput& input) -> std::optional<Failure> {
    if (std::getenv("FAULTY_TASK_WAITS") != nullptr) {
      input.log("waiting");
      while (true) ::pause();
    }
    throw std::runtime_error("no task today");
  };
  workload.flags.check = [](const RunConfig& config) -> Status {
    if (options_of<Options>(config).fault == "throws_in_check") throw std::runtime_error("no check");
    if (options_of<Options>(config).fault == "check_throws_a_number") throw 7;
    return {};
  };
  workload.make = [](const RunConfig& config, at::Device, const OnDataProgress&) -> WorkloadOrFailure {
    const std::string& fault = options_of<Options>(config).fault;
    if (fault == "throws_in_make") throw std::runtime_error("no model today");
    if (fault == "makes_nothing") return std::unique_ptr<Workload>();
    return std::unique_ptr<Workload>(std::make_unique<Faulty>(fault));
  };
}

}  // namespace

LOCKSTEP_PLUGIN(faulty)
