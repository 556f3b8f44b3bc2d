#include "runner/dist/grad_reducer.h"

#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <atomic>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>
#include <utility>

#include "runner/dist/process_group.h"

namespace lockstep {
namespace {

constexpr int64_t kFirstBucketBytes = 1 << 20;
constexpr int64_t kBucketBytes = 25 << 20;

void drop_gradients(const NamedTensors& parameters) {
  for (const NamedTensor& p : parameters) p.tensor.mutable_grad() = at::Tensor();
}

}  // namespace

struct GradReducer::Impl {
  using Clock = std::chrono::steady_clock;

  std::unique_ptr<c10d::Reducer> reducer;
  // Hooks on the nodes that accumulate the parameters' gradients. (A hook on the tensor would leave an empty entry
  // behind when it is removed, one more for each generation.)
  std::vector<std::pair<std::shared_ptr<torch::autograd::Node>, uintptr_t>> hooks;
  std::atomic<Clock::rep> last_gradient{0};  // written by autograd's threads
  std::atomic<size_t> gradients{0};          // since prepare; by autograd's threads
  std::atomic<bool> prepared{false};
  std::vector<uint8_t> reached;  // by parameter: since prepare; each written by one of autograd's threads
  std::function<void()> on_last_gradient;

  void watch_gradients(const std::vector<at::Tensor>& parameters) {
    using torch::autograd::variable_list;
    reached.assign(parameters.size(), 0);
    for (size_t i = 0; i < parameters.size(); ++i) {
      auto node = torch::autograd::impl::grad_accumulator(parameters[i]);
      const uintptr_t hook = node->add_post_hook(std::make_unique<torch::autograd::utils::LambdaPostHook>(
          [this, i](const variable_list& outputs, const variable_list& /*inputs*/) {
            reached[i] = 1;
            on_gradient();
            return outputs;
          }));
      hooks.emplace_back(std::move(node), hook);
    }
  }
  void on_gradient() {
    last_gradient.store(Clock::now().time_since_epoch().count());
    if (gradients.fetch_add(1) + 1 < hooks.size() || !prepared.exchange(false)) return;
    if (on_last_gradient) on_last_gradient();
  }
  ~Impl() {
    for (const auto& [node, hook] : hooks) node->del_post_hook(hook);
  }
};

GradReducer::GradReducer(const NamedTensors& parameters, ProcessGroup& group, std::function<void()> on_last_gradient)
    : parameters_(parameters) {
  drop_gradients(parameters_);
  if (group.is_solo()) return;

  std::vector<at::Tensor> tensors;
  tensors.reserve(parameters.size());
  for (const NamedTensor& p : parameters) tensors.push_back(p.tensor);
  auto [buckets, limits] = c10d::compute_bucket_assignment_by_size(
      tensors, {static_cast<size_t>(kFirstBucketBytes), static_cast<size_t>(kBucketBytes)});
  // Gradients become ready from the last layer to the first.
  std::vector<std::vector<size_t>> reversed(buckets.rbegin(), buckets.rend());

  impl_ = std::make_unique<Impl>();
  impl_->reducer = std::make_unique<c10d::Reducer>(
      tensors, reversed, c10::intrusive_ptr<c10d::ProcessGroup>::reclaim_copy(group.handle()),
      /*expect_sparse_gradients=*/std::vector<bool>(tensors.size(), false), kBucketBytes,
      /*find_unused_parameters=*/false, /*gradient_as_bucket_view=*/true,
      /*param_names=*/std::unordered_map<size_t, std::string>{}, kFirstBucketBytes,
      /*skip_all_reduce_unused_params=*/false, /*use_python_reducer=*/false,
      /*bucket_bytes_cap_list=*/std::vector<int64_t>{});
  // Without this hook the Reducer multiplies by 1/W when it copies a gradient into its bucket, as in its first
  // backward, and divides by W when the gradient is already there, as in all later ones. Unless W is a power of two the
  // results differ in their bits, so that the first step of a new group would differ from the same step in the group
  // before it.
  impl_->reducer->register_builtin_comm_hook(c10d::BuiltinCommHookType::ALLREDUCE);
  impl_->on_last_gradient = std::move(on_last_gradient);
  impl_->watch_gradients(tensors);
}

GradReducer::~GradReducer() {
  impl_.reset();
  drop_gradients(parameters_);
}

void GradReducer::prepare(const at::Tensor& loss) {
  if (impl_ == nullptr) return;
  impl_->prepared.store(true);
  impl_->gradients.store(0);
  std::fill(impl_->reached.begin(), impl_->reached.end(), uint8_t{0});
  // The Reducer records the order in which gradients become ready, to rebuild its buckets, which we never ask for. This
  // clears the record, which otherwise grows by every parameter in every step.
  impl_->reducer->reset_state();
  impl_->reducer->prepare_for_backward({loss});
}

std::vector<std::string> GradReducer::unreached() const {
  std::vector<std::string> names;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const bool is_reached = impl_ ? impl_->reached[i] != 0 : parameters_[i].tensor.grad().defined();
    if (!is_reached) names.push_back(parameters_[i].name);
  }
  return names;
}

std::chrono::steady_clock::duration GradReducer::exposed_time() const {
  if (impl_ == nullptr) return {};
  using Clock = Impl::Clock;
  return Clock::now() - Clock::time_point(Clock::duration(impl_->last_gradient.load()));
}

}  // namespace lockstep
