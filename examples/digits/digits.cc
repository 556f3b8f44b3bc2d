// digits: a small convolutional network of torch::nn modules that reads digits, as an example of a model of your own
// (docs/your-own-model.md). The pictures are drawn from their numbers, so it needs no file.
//
//   lockstep run digits --plugin digits.so --nproc 2
//
// Shapes: B pictures, C channels.
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include <array>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "runner/data/sampler.h"
#include "runner/layers/dropouts.h"
#include "runner/layers/initial_values.h"
#include "runner/plugin/plugin.h"

namespace {

using namespace lockstep;

// ---- Flags --------------------------------------------------------------------------------------------------------

struct Options {
  int64_t pictures = 4000;
  int64_t channels = 16;
  double noise = 0.5;
  double dropout = 0.1;
};

void add_flags(FlagTableBuilder& table) {
  table.group("Digits");
  table.integer("pictures", FlagScope::kMaths, 10, kCountMax, &Options::pictures, "pictures to learn from");
  table.integer("channels", FlagScope::kMaths, 1, 1024, &Options::channels, "channels of the first convolution");
  table.real("noise", FlagScope::kMaths, 0.0, 100.0, false, &Options::noise,
             "standard deviation of the pictures' noise");
  table.real("dropout", FlagScope::kMaths, 0.0, 1.0, true, &Options::dropout, "dropout probability");
}

// ---- Data: what a Dataset's __getitem__ would return ----------------------------------------------------------------

constexpr int64_t kSide = 16;
constexpr int64_t kPixels = kSide * kSide;
constexpr int64_t kDigits = 10;
constexpr int64_t kValidationPictures = 500;

int64_t label_of(int64_t sample) { return sample % kDigits; }

// A digit of seven segments somewhere in the picture, and noise. The same number always gives the same picture.
void draw(int64_t sample, double noise, float* pixels) {
  static constexpr std::array<unsigned, kDigits> kSegments = {0x77, 0x24, 0x5d, 0x6d, 0x2e,
                                                              0x6b, 0x7b, 0x25, 0x7f, 0x6f};
  std::mt19937_64 random(static_cast<uint64_t>(sample));
  std::normal_distribution<float> normal;
  for (int64_t i = 0; i < kPixels; ++i) pixels[i] = static_cast<float>(noise) * normal(random);
  const auto left = static_cast<int64_t>(random() % 10), top = static_cast<int64_t>(random() % 4);
  const auto line = [&](int64_t x, int64_t y, int64_t dx, int64_t dy) {
    for (int64_t i = 0; i < 5; ++i) pixels[(top + y + i * dy) * kSide + left + x + i * dx] += 1.0f;
  };
  const unsigned segments = kSegments[static_cast<size_t>(label_of(sample))];
  if (segments & 0x01) line(1, 0, 1, 0);
  if (segments & 0x02) line(0, 1, 0, 1);
  if (segments & 0x04) line(6, 1, 0, 1);
  if (segments & 0x08) line(1, 6, 1, 0);
  if (segments & 0x10) line(0, 7, 0, 1);
  if (segments & 0x20) line(6, 7, 0, 1);
  if (segments & 0x40) line(1, 12, 1, 0);
}

// ---- The model ----------------------------------------------------------------------------------------------------

struct NetImpl : torch::nn::Module {
  torch::nn::Conv2d near{nullptr}, far{nullptr};
  torch::nn::Linear out{nullptr};

  explicit NetImpl(int64_t C) {
    near = register_module("near", torch::nn::Conv2d(torch::nn::Conv2dOptions(1, C, 3).padding(1)));
    far = register_module("far", torch::nn::Conv2d(torch::nn::Conv2dOptions(C, 2 * C, 3).padding(1)));
    out = register_module("out", torch::nn::Linear(2 * C * kPixels / 16, kDigits));
  }
  // [B, 1, kSide, kSide] → logits [B, kDigits]
  at::Tensor forward(const at::Tensor& images, Dropouts dropout) {
    const at::Tensor edges = torch::max_pool2d(torch::relu(near(images)), 2);
    const at::Tensor shapes = torch::max_pool2d(torch::relu(far(edges)), 2);
    return out(dropout(shapes.flatten(1)));
  }
};
TORCH_MODULE(Net);

// ---- The workload ---------------------------------------------------------------------------------------------------

class Digits final : public Workload {
 public:
  Digits(const Options& options, at::Device device) : options_(options), device_(device), net_(options.channels) {
    net_->to(device);
    info_.loss_terms = {{.name = "loss"}, {.name = "accuracy", .coefficient = 0.0}};
    info_.best = {.name = "valid_accuracy", .direction = Direction::kHigher};
  }

  const WorkloadInfo& info() const override { return info_; }

  std::vector<ParameterGroup> groups() const override {
    NamedTensors parameters;
    for (const auto& entry : net_->named_parameters()) parameters.push_back({entry.key(), entry.value()});
    return {{.name = "", .parameters = parameters}};
  }
  void initialize(uint64_t seed) override {
    const torch::NoGradGuard no_grad;
    size_t place = 0;
    for (const at::Tensor& parameter : net_->parameters()) {
      if (parameter.dim() > 1) {
        parameter.copy_(InitialValues(seed, place).xavier_uniform(parameter.sizes()));
      } else {
        parameter.zero_();
      }
      ++place;
    }
  }

  // Numbers from 0 on are for training, those after them for validation.
  Result<std::unique_ptr<BatchSource>> batches(const BatchOptions& options) const override {
    const int64_t training = options_.pictures;
    if (options.split == Split::kTrain) {
      return Sampler::create({.seed = options.seed, .num_samples = training, .global_batch = options.global_batch});
    }
    return InOrder::create(
        {.first = training, .num_samples = kValidationPictures, .global_batch = options.global_batch});
  }
  Result<HostBatch> fetch(const BatchShare& share) const override {
    const auto B = static_cast<int64_t>(share.samples.size());
    const auto host = at::TensorOptions().pinned_memory(device_.is_cuda());
    const at::Tensor images = at::empty({B, 1, kSide, kSide}, host.dtype(at::kFloat));
    const at::Tensor labels = at::empty({B}, host.dtype(at::kLong));
    for (int64_t i = 0; i < B; ++i) {
      const int64_t sample = share.samples[static_cast<size_t>(i)];
      draw(sample, options_.noise, images.data_ptr<float>() + i * kPixels);
      labels.data_ptr<int64_t>()[i] = label_of(sample);
    }
    // The weights of the two terms: both are sums over B pictures.
    const auto weight = static_cast<double>(B);
    return HostBatch{.tensors = {{"images", images}, {"labels", labels}}, .weights = {weight, weight}};
  }

  std::vector<at::Tensor> loss(const DeviceBatch& batch) override {
    Dropouts dropout;
    if (batch.is_training) {
      const BatchShare& share = batch.share;
      dropout = Dropouts(options_.dropout,
                         {.seed = share.seed, .step = share.step, .first_slot = share.first_slot, .layer = 0});
    }
    const at::Tensor logits = net_->forward(batch["images"], dropout).to(at::kFloat);
    const at::Tensor& labels = batch["labels"];
    return {at::cross_entropy_loss(logits, labels, {}, at::Reduction::Sum),
            (logits.argmax(1) == labels).sum().to(at::kFloat)};
  }

  // Three passes of two operations for each product of the layers.
  double flops_per_sample() const override {
    const auto C = static_cast<double>(options_.channels), pixels = static_cast<double>(kPixels);
    return 6.0 * (9.0 * C * pixels + 9.0 * C * 2.0 * C * pixels / 4.0 + 2.0 * C * pixels / 16.0 * kDigits);
  }
  std::vector<std::pair<std::string, std::string>> describe() const override {
    return {{"pictures",
             std::to_string(options_.pictures) + " train, " + std::to_string(kValidationPictures) + " validate"}};
  }
  std::vector<std::string> evaluation_lines(const EvaluationReport& report) override {
    const double accuracy = metric_value(report.metrics, info_.best.name);
    return {"epoch " + std::to_string(report.epoch) + ": accuracy " + std::to_string(accuracy)};
  }

 private:
  Options options_;
  at::Device device_;
  Net net_;
  WorkloadInfo info_;
};

void digits(PluginWorkload& workload) {
  WorkloadFlags& flags = workload.flags;
  flags.name = "digits";
  flags.summary = "a small convolutional network that reads digits";
  flags.data = "none: it draws its pictures";
  flags.example = "lockstep run digits --plugin digits.so --nproc 2";
  flags.set_defaults = [](RunConfig& config) {
    config.options = Options();
    config.training.batch_size = 64;
    config.training.num_epochs = 20;
    config.training.eval_every = 1;
    config.training.lr = 1e-3;
  };
  flags.add_flags = add_flags;
  workload.make = [](const RunConfig& config, at::Device device, const OnDataProgress&) -> WorkloadOrFailure {
    return std::make_unique<Digits>(options_of<Options>(config), device);
  };
}

}  // namespace

LOCKSTEP_PLUGIN(digits)
