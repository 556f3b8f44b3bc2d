// byte_lm: a small language model on one text file, as an example of a model of your own (docs/your-own-model.md).
//
// A transformer that reads T bytes and predicts the byte after each of them. The text is cut into windows of T bytes; a
// sample is a window. The last tenth of the windows is the validation set.
//
//   lockstep run byte_lm --plugin byte_lm.so --text book.txt --nproc 2
//   lockstep byte_lm write --plugin byte_lm.so --checkpoint RUN --prompt "Once"
//
// Shapes: B windows, T bytes, D width, H heads, V = 256 values of a byte.
#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <numbers>
#include <string>
#include <utility>
#include <vector>

#include "runner/base/sha256.h"
#include "runner/data/sampler.h"
#include "runner/layers/dropouts.h"
#include "runner/layers/initial_values.h"
#include "runner/layers/linear.h"
#include "runner/plugin/plugin.h"

namespace {

using namespace lockstep;

constexpr int64_t kBytes = 256;

// ---- Flags --------------------------------------------------------------------------------------------------------

struct Options {
  std::string text;
  int64_t context = 128;
  int64_t width = 128;
  int64_t num_blocks = 4;
  int64_t num_heads = 4;
  double dropout = 0.1;
};

std::string name_of_file(const std::string& path) { return path.substr(path.rfind('/') + 1); }

void add_flags(FlagTableBuilder& table) {
  table.group("Data");
  Flag& text = table.text("text", FlagScope::kMaths, "a file", &Options::text, "the text to learn (required)");
  text.identity = name_of_file;  // only the name counts, so that a run can resume when the file was moved
  table.group("Model");
  table.integer("context", FlagScope::kMaths, 1, kWidthMax, &Options::context, "bytes that are read at once");
  table.integer("width", FlagScope::kMaths, 1, kWidthMax, &Options::width, "width; divisible by --num_heads");
  table.integer("num_blocks", FlagScope::kMaths, 1, 1024, &Options::num_blocks, "transformer blocks");
  table.integer("num_heads", FlagScope::kMaths, 1, 1024, &Options::num_heads, "attention heads");
  table.real("dropout", FlagScope::kMaths, 0.0, 1.0, true, &Options::dropout, "dropout probability");
}

Status check(const RunConfig& config) {
  const Options& options = options_of<Options>(config);
  if (options.text.empty()) return Error{ErrorCode::kInvalid, "--text is required: a file to learn"};
  if (options.width % options.num_heads != 0) {
    return Error{ErrorCode::kInvalid, "--width " + std::to_string(options.width) + " is not divisible by --num_heads " +
                                          std::to_string(options.num_heads)};
  }
  return {};
}

// ---- The model ----------------------------------------------------------------------------------------------------

struct Norm {
  at::Tensor weight;  // [D]
  at::Tensor bias;    // [D]

  Norm(int64_t width, at::Device device) : weight(trained({width}, device)), bias(trained({width}, device)) {}
  at::Tensor operator()(const at::Tensor& x) const { return at::layer_norm(x, weight.sizes(), weight, bias); }
};

struct Block {
  Norm attention_norm, mlp_norm;
  Linear qkv, out, up, down;

  Block(int64_t width, at::Device device)
      : attention_norm(width, device),
        mlp_norm(width, device),
        qkv(trained_linear(width, 3 * width, device)),
        out(trained_linear(width, width, device)),
        up(trained_linear(width, 4 * width, device)),
        down(trained_linear(4 * width, width, device)) {}
};

class ByteModel {
 public:
  ByteModel(const Options& options, at::Device device)
      : heads_(options.num_heads),
        embedding_VD_(trained({kBytes, options.width}, device)),
        positions_TD_(trained({options.context, options.width}, device)),
        last_norm_(options.width, device) {
    for (int64_t i = 0; i < options.num_blocks; ++i) blocks_.emplace_back(options.width, device);
  }

  // The order is fixed, because a parameter's place in the list is an input of its initial values.
  NamedTensors parameters() const {
    NamedTensors list = {{"embedding", embedding_VD_}, {"position_embedding", positions_TD_}};
    const auto add_norm = [&](const std::string& name, const Norm& norm) {
      list.push_back({name + ".weight", norm.weight});
      list.push_back({name + ".bias", norm.bias});
    };
    for (size_t i = 0; i < blocks_.size(); ++i) {
      const std::string block = "blocks." + std::to_string(i) + ".";
      add_norm(block + "attention_norm", blocks_[i].attention_norm);
      add_linear(list, block + "qkv", blocks_[i].qkv);
      add_linear(list, block + "out", blocks_[i].out);
      add_norm(block + "mlp_norm", blocks_[i].mlp_norm);
      add_linear(list, block + "up", blocks_[i].up);
      add_linear(list, block + "down", blocks_[i].down);
    }
    add_norm("last_norm", last_norm_);
    return list;
  }

  void initialize(uint64_t seed) {
    const torch::NoGradGuard no_grad;
    const NamedTensors list = parameters();
    for (size_t i = 0; i < list.size(); ++i) {
      const at::Tensor& parameter = list[i].tensor;
      if (parameter.dim() == 2) {
        parameter.copy_(InitialValues(seed, i).normal(parameter.sizes(), 0.02));
      } else {
        parameter.fill_(list[i].name.ends_with("norm.weight") ? 1.0 : 0.0);
      }
    }
  }

  // bytes_BT → logits of the next byte, BTV.
  at::Tensor operator()(const at::Tensor& bytes_BT, Dropouts dropout) const {
    at::Tensor x_BTD = at::embedding(embedding_VD_, bytes_BT) + positions_TD_.slice(0, 0, bytes_BT.size(1));
    x_BTD = dropout(x_BTD);
    for (const Block& block : blocks_) {
      x_BTD = x_BTD + dropout(attention(block, block.attention_norm(x_BTD)));
      x_BTD = x_BTD + dropout(block.down(at::gelu(block.up(block.mlp_norm(x_BTD)))));
    }
    return at::linear(last_norm_(x_BTD), embedding_VD_);
  }

 private:
  at::Tensor attention(const Block& block, const at::Tensor& x_BTD) const {
    const int64_t B = x_BTD.size(0), T = x_BTD.size(1), D = x_BTD.size(2);
    const auto qkv = block.qkv(x_BTD).view({B, T, 3, heads_, D / heads_}).permute({2, 0, 3, 1, 4}).unbind(0);
    const at::Tensor y_BHTd = at::scaled_dot_product_attention(qkv[0], qkv[1], qkv[2], {}, 0.0, /*is_causal=*/true);
    return block.out(y_BHTd.transpose(1, 2).reshape({B, T, D}));
  }

  int64_t heads_;
  at::Tensor embedding_VD_;  // of the input bytes, and tied to it the projection to logits
  at::Tensor positions_TD_;  // position embeddings
  std::vector<Block> blocks_;
  Norm last_norm_;
};

// ---- The workload: data, loss, evaluation -------------------------------------------------------------------------

class ByteWorkload final : public Workload {
 public:
  ByteWorkload(const Options& options, std::string text, at::Device device)
      : options_(options), text_(std::move(text)), device_(device), model_(options, device) {
    info_.loss_terms = {{.name = "loss"}};
    info_.best = {.name = "valid_bits_per_byte", .direction = Direction::kLower};
    windows_ = (static_cast<int64_t>(text_.size()) - 1) / options.context;
    valid_windows_ = std::max<int64_t>(1, windows_ / 10);
  }

  static int64_t bytes_needed(const Options& options) { return 2 * options.context + 1; }

  const WorkloadInfo& info() const override { return info_; }
  std::vector<ParameterGroup> groups() const override { return {{.name = "", .parameters = model_.parameters()}}; }
  void initialize(uint64_t seed) override { model_.initialize(seed); }

  // A rank whose text differs from the others' is refused.
  Json shared_facts() const override { return {{"sha256 of the text", sha256_hex(text_)}}; }
  double flops_per_sample() const override {
    return 6.0 * static_cast<double>(count_elements(model_.parameters())) * static_cast<double>(options_.context);
  }
  std::vector<std::pair<std::string, std::string>> describe() const override {
    return {{"text", options_.text + ", " + std::to_string(text_.size()) + " bytes"},
            {"windows",
             std::to_string(windows_ - valid_windows_) + " train, " + std::to_string(valid_windows_) + " validate"}};
  }

  Result<std::unique_ptr<BatchSource>> batches(const BatchOptions& options) const override {
    const int64_t training = windows_ - valid_windows_;
    if (options.split == Split::kTrain) {
      return Sampler::create({.seed = options.seed, .num_samples = training, .global_batch = options.global_batch});
    }
    return InOrder::create({.first = training, .num_samples = valid_windows_, .global_batch = options.global_batch});
  }

  Result<HostBatch> fetch(const BatchShare& share) const override {
    const auto B = static_cast<int64_t>(share.samples.size());
    const int64_t T = options_.context;
    const at::Tensor bytes = at::empty({B, T + 1}, at::TensorOptions(at::kLong).pinned_memory(device_.is_cuda()));
    int64_t* out = bytes.data_ptr<int64_t>();
    for (const int64_t window : share.samples) {
      for (int64_t t = 0; t <= T; ++t) *out++ = static_cast<unsigned char>(text_[static_cast<size_t>(window * T + t)]);
    }
    return HostBatch{.tensors = {{"bytes", bytes}}, .weights = {static_cast<double>(B * T)}};
  }

  std::vector<at::Tensor> loss(const DeviceBatch& batch) override {
    const at::Tensor& bytes_BT1 = batch["bytes"];
    const int64_t T = options_.context;
    Dropouts dropout;
    if (batch.is_training) {
      const BatchShare& share = batch.share;
      dropout = Dropouts(options_.dropout,
                         {.seed = share.seed, .step = share.step, .first_slot = share.first_slot, .layer = 0});
    }
    const at::Tensor logits_BTV = model_(bytes_BT1.slice(1, 0, T), dropout);
    return {at::cross_entropy_loss(logits_BTV.reshape({-1, kBytes}).to(at::kFloat),
                                   bytes_BT1.slice(1, 1, T + 1).reshape(-1), {}, at::Reduction::Sum)};
  }

  EvaluationMetrics figures(const std::vector<MetricSum>& totals) const override {
    EvaluationMetrics means = Workload::figures(totals);
    means.emplace_back("valid_bits_per_byte", metric_value(means, "valid_loss") / std::numbers::ln2);
    return means;
  }
  std::vector<std::string> evaluation_lines(const EvaluationReport& report) override {
    const double bits = metric_value(report.metrics, info_.best.name);
    return {"epoch " + std::to_string(report.epoch) + ": " + std::to_string(bits) + " bits a byte"};
  }

 private:
  Options options_;
  std::string text_;
  at::Device device_;
  ByteModel model_;
  WorkloadInfo info_;
  int64_t windows_ = 0;
  int64_t valid_windows_ = 0;
};

Failure failure(ExitCode code, std::string message) { return Failure{code, std::move(message)}; }

WorkloadOrFailure make(const RunConfig& config, at::Device device, const OnDataProgress& on_progress) {
  const Options& options = options_of<Options>(config);
  std::ifstream file(options.text, std::ios::binary);
  if (!file || std::filesystem::is_directory(options.text)) {
    return failure(ExitCode::kData, "--text " + options.text + ": cannot be read; expected a file");
  }
  std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  on_progress(0, 0);
  if (static_cast<int64_t>(text.size()) < ByteWorkload::bytes_needed(options)) {
    return failure(ExitCode::kData,
                   "--text " + options.text + " has " + std::to_string(text.size()) + " bytes, expected at least " +
                       std::to_string(ByteWorkload::bytes_needed(options)) + ": two windows of --context " +
                       std::to_string(options.context) + " and a byte");
  }
  return std::unique_ptr<Workload>(std::make_unique<ByteWorkload>(options, std::move(text), device));
}

// ---- A task: `lockstep byte_lm write` -----------------------------------------------------------------------------

struct WriteOptions {
  std::string prompt = "The";
  int64_t bytes = 400;
  double temperature = 0.8;
  int64_t seed = 1;
};

void add_write_flags(FlagTableBuilder& table) {
  table.group("Text");
  constexpr FlagScope kHere = FlagScope::kThisProcess;
  table.text("prompt", kHere, "a text", &WriteOptions::prompt, "what the text begins with");
  table.integer("bytes", kHere, 1, 1'000'000, &WriteOptions::bytes, "bytes that are written");
  table.real("temperature", kHere, 0.0, 100.0, false, &WriteOptions::temperature, "0: the likeliest byte each time");
  table.integer("text_seed", kHere, 0, kCountMax, &WriteOptions::seed, "another seed writes another text");
}

std::optional<Failure> write_text(const TaskInput& input) {
  const torch::NoGradGuard no_grad;
  const Options& options = options_of<Options>(input.config);
  const WriteOptions& write = options_of<WriteOptions>(input.config);
  const ByteModel model(options, input.device);
  for (const NamedTensor& parameter : model.parameters()) {
    const auto found = std::find_if(input.weights.begin(), input.weights.end(),
                                    [&](const NamedTensor& weight) { return weight.name == parameter.name; });
    if (found == input.weights.end() || found->tensor.sizes() != parameter.tensor.sizes()) {
      return failure(ExitCode::kCheckpoint,
                     input.weights_path + " has no " + parameter.name + " of this model's shape");
    }
    parameter.tensor.copy_(found->tensor);
  }
  std::string text = write.prompt;
  for (int64_t i = 0; i < write.bytes; ++i) {
    const std::string read = text.substr(text.size() - std::min(text.size(), static_cast<size_t>(options.context)));
    at::Tensor bytes_BT = at::empty({1, static_cast<int64_t>(read.size())}, at::kLong);
    std::transform(read.begin(), read.end(), bytes_BT.mutable_data_ptr<int64_t>(),
                   [](char byte) { return static_cast<unsigned char>(byte); });
    at::Tensor logits_V = model(bytes_BT.to(input.device), Dropouts()).select(1, -1).squeeze(0).cpu().contiguous();
    if (write.temperature > 0.0) {
      // The Gumbel trick: the largest of logits/temperature + Gumbel noise is a draw from their softmax.
      const PhiloxStream stream{static_cast<uint64_t>(write.seed), 0, static_cast<uint32_t>(i), 0};
      float* const logits = logits_V.mutable_data_ptr<float>();
      for (uint32_t v = 0; v < kBytes; ++v) {
        const double uniform = (stream.word(v) + 1.0) / 4294967297.0;
        logits[v] = static_cast<float>(logits[v] / write.temperature - std::log(-std::log(uniform)));
      }
    }
    text += static_cast<char>(logits_V.argmax().item<int64_t>());
  }
  text += "\n";
  const Status written = input.out(text.data(), text.size());
  if (!written.ok()) return failure(ExitCode::kCheckpoint, written.error().message);
  return std::nullopt;
}

// ---- Registration -------------------------------------------------------------------------------------------------

void byte_lm(PluginWorkload& workload) {
  WorkloadFlags& flags = workload.flags;
  flags.name = "byte_lm";
  flags.summary = "a small language model on the bytes of a text";
  flags.data = "one file of text (--text)";
  flags.example = "lockstep run byte_lm --plugin byte_lm.so --text book.txt --nproc 2";
  flags.set_defaults = [](RunConfig& config) {
    config.options = Options();
    config.training.batch_size = 32;
    config.training.num_epochs = 10;
    config.training.eval_every = 1;
    config.training.optimizer = OptimizerKind::kAdamw;
    config.training.lr = 1e-3;
    config.training.clip_grad_norm = 1.0;
  };
  flags.add_flags = add_flags;
  flags.check = check;
  flags.data_name = [](const RunConfig& config) { return name_of_file(options_of<Options>(config).text); };
  flags.tasks = {{.name = "write",
                  .summary = "writes a text, byte by byte",
                  .examples = {"lockstep byte_lm write --plugin byte_lm.so --checkpoint RUN --prompt Once"},
                  .set_defaults = [](RunConfig& config) { config.task.options = WriteOptions(); },
                  .add_flags = add_write_flags,
                  .workload_flags = {"text", "context", "width", "num_blocks", "num_heads"},
                  .check = {}}};
  workload.make = make;
  workload.run_task = write_text;
}

}  // namespace

LOCKSTEP_PLUGIN(byte_lm)
