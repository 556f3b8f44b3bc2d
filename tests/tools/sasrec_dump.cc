// sasrec_dump: trains SASRec for some steps without dropout and writes what each step saw, for the comparison with
// PyTorch in tests/python/test_sasrec_parity.py.
//
//   sasrec_dump --dataset FILE --form post|pre|original --out FOLDER [--steps 20 --batch_size 64 --maxlen 50
//               --hidden_units 50 --num_heads 1 --lr 0.001 --seed 42]
//
// FOLDER/step-NN.safetensors, for NN from 00: weight/<parameter> before the step, grad/<parameter> of the mean loss,
// ids [3, B, T] (input, positives, negatives), loss (mean). FOLDER/final.safetensors: weight/<parameter> after the last
// step, ids of the last batch, logits [2, B, T] of it. metadata: num_items.
#include <torch/optim.h>
#include <torch/types.h>

#include <cstdio>
#include <exception>
#include <map>
#include <string>
#include <vector>

#include "runner/base/check.h"
#include "runner/base/file_system.h"
#include "runner/formats/safetensors.h"
#include "runner/models/sasrec/sasrec_workload.h"
#include "tests/support/disk.h"

namespace lockstep {
namespace {

using Flags = std::map<std::string, std::string>;

int64_t number(const Flags& flags, const std::string& name, int64_t fallback) {
  const auto found = flags.find(name);
  return found == flags.end() ? fallback : std::stoll(found->second);
}

RunConfig config_of(const Flags& flags) {
  RunConfig config;
  config.workload = "sasrec";
  config.options = SasrecOptions{.dataset = flags.at("dataset"),
                                 .norm_first = flags.at("form") == "pre",
                                 .original = flags.at("form") == "original",
                                 .maxlen = number(flags, "maxlen", 50),
                                 .hidden_units = number(flags, "hidden_units", 50),
                                 .num_heads = number(flags, "num_heads", 1),
                                 .dropout_rate = 0.0};
  const std::string& form = flags.at("form");
  if (form.starts_with("tisasrec")) {
    SasrecOptions& options = options_of<SasrecOptions>(config);
    options.variant = SequenceVariant::kTisasrec;
    options.tisasrec.time_dropout = form == "tisasrec-pairwise" ? TimeDropout::kPairwise : TimeDropout::kTable;
  }
  config.training.seed = static_cast<uint64_t>(number(flags, "seed", 42));
  return config;
}

DType dtype_of(const at::Tensor& tensor) {
  LOCKSTEP_CHECK(tensor.scalar_type() == at::kFloat || tensor.scalar_type() == at::kLong, "dtype not dumped");
  return tensor.scalar_type() == at::kLong ? DType::kI64 : DType::kF32;
}

Status write_tensors(const std::string& path, const NamedTensors& tensors, int64_t num_items) {
  std::vector<TensorView> views;
  for (const auto& [name, tensor] : tensors) {
    LOCKSTEP_CHECK(tensor.is_contiguous(), "only contiguous tensors are dumped");
    views.push_back({name, dtype_of(tensor), tensor.sizes().vec(), tensor.const_data_ptr(), tensor.nbytes()});
  }
  const auto produce = [&](const ByteSink& sink) {
    return write_safetensors(views, {{"num_items", std::to_string(num_items)}}, sink);
  };
  PosixFileSystem files;
  return write_file(files, path, produce);
}

void append(NamedTensors& out, const std::string& prefix, const SasrecWorkload& workload, bool gradients) {
  for (const NamedTensor& parameter : parameters_of(workload)) {
    const at::Tensor& tensor = gradients ? parameter.tensor.grad() : parameter.tensor;
    out.push_back({prefix + parameter.name, tensor.detach().contiguous().clone()});
  }
}

NamedTensors inputs_of(const DeviceBatch& batch) {
  NamedTensors inputs = {{"ids", batch["ids_3BT"]}};
  if (batch.has("times_BT")) inputs.push_back({"times", batch["times_BT"]});
  return inputs;
}

Status dump_steps(SasrecWorkload& workload, const Flags& flags, const std::string& folder) {
  const auto seed = static_cast<uint64_t>(number(flags, "seed", 42));
  const auto learning_rate = flags.contains("lr") ? std::stod(flags.at("lr")) : 1e-3;
  std::vector<at::Tensor> trained;
  for (const NamedTensor& parameter : parameters_of(workload)) trained.push_back(parameter.tensor);
  torch::optim::Adam adam(trained, torch::optim::AdamOptions(learning_rate).betas({0.9, 0.98}));
  TRY_ASSIGN(const std::unique_ptr<BatchSource> source,
             workload.batches({.seed = seed, .global_batch = number(flags, "batch_size", 64)}));
  const int64_t items = workload.data().num_items();
  DeviceBatch batch;
  for (int64_t step = 0; step < number(flags, "steps", 20); ++step) {
    const DataPosition position = position_after({}, step, *source);
    const BatchShare share{.seed = seed,
                           .step = step,
                           .epoch = position.epoch,
                           .first_slot = 0,
                           .samples = source->batch(position.epoch, position.index)};
    TRY_ASSIGN(const HostBatch fetched, workload.fetch(share));
    batch = {.share = share, .tensors = fetched.tensors};
    adam.zero_grad();
    at::Tensor loss = workload.loss(batch)[0] / fetched.weights[0];
    const at::Tensor regularization = workload.regularization();
    if (regularization.defined()) loss = loss + regularization;
    loss.backward();
    NamedTensors out = inputs_of(batch);
    out.push_back({"loss", loss.detach()});
    append(out, "weight/", workload, /*gradients=*/false);
    append(out, "grad/", workload, /*gradients=*/true);
    const std::string number_text = (step < 10 ? "0" : "") + std::to_string(step);
    TRY(write_tensors(folder + "/step-" + number_text + ".safetensors", out, items));
    adam.step();
  }
  const at::NoGradGuard no_grad;
  NamedTensors out = inputs_of(batch);
  const DropoutKey dropout{
      .seed = batch.share.seed, .step = batch.share.step, .first_slot = batch.share.first_slot, .layer = 0};
  const at::Tensor times_BT = batch.has("times_BT") ? batch["times_BT"] : at::Tensor();
  out.push_back({"logits", workload.model().train_logits(batch["ids_3BT"], times_BT, dropout).contiguous()});
  append(out, "weight/", workload, /*gradients=*/false);
  return write_tensors(folder + "/final.safetensors", out, items);
}

int run(int argc, char** argv) {
  Flags flags;
  for (int i = 1; i + 1 < argc; i += 2) flags[std::string(argv[i]).substr(2)] = argv[i + 1];
  auto made = make_sasrec(disk(), config_of(flags), at::Device(at::kCPU), [](int64_t, int64_t) {});
  if (const auto* failure = std::get_if<Failure>(&made)) {
    std::fprintf(stderr, "sasrec_dump: %s\n", failure->message.c_str());
    return static_cast<int>(failure->code);
  }
  auto& workload = static_cast<SasrecWorkload&>(*std::get<std::unique_ptr<Workload>>(made));
  workload.initialize(static_cast<uint64_t>(number(flags, "seed", 42)));
  const Status written = dump_steps(workload, flags, flags.at("out"));
  if (!written.ok()) {
    std::fprintf(stderr, "sasrec_dump: %s\n", written.error().message.c_str());
    return static_cast<int>(ExitCode::kCheckpoint);
  }
  return 0;
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  try {
    return lockstep::run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "sasrec_dump: %s (flags: --dataset --form --out are needed)\n", error.what());
    return 2;
  }
}
