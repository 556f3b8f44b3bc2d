// jit_dump: JiT on tensors from Python, for the comparison with the twin in tests/python/test_jit.py.
//
//   jit_dump images|gradients|samples|step --weights FILE --input FILE --out FILE
//
// A model of 16 x 16 pixels, patches of 4, 3 classes, depth 6, width 128. --input (safetensors): z_BCHH, t_B,
// classes_B; for gradients image_BCHH; for samples noise_BCHH, classes_B.
// --out: images: image_BCHH. gradients: grad/<parameter> of the sum of squares of the difference. samples: image_BCHH
// of 5 steps with guidance 2 and noise scale 2.
// step: the workload itself, of 64 values in the bottleneck, --noise_scale 2 --t_eps 0.1; --input: a batch as
// JitWorkload::fetch makes it. --out: loss, and the parameters after one step of AdamW (rate 0.01, eps 0.0001, decay
// 0.1).
#include <torch/types.h>

#include <string>
#include <utility>

#include "runner/base/check.h"
#include "runner/base/file_system.h"
#include "runner/checkpoint/reader.h"
#include "runner/checkpoint/weights.h"
#include "runner/models/jit/data/prepare_images.h"
#include "runner/models/jit/jit_model.h"
#include "runner/models/jit/jit_sampling.h"
#include "runner/models/jit/jit_workload.h"
#include "runner/models/workload_flags.h"
#include "runner/optim/fused_adam.h"
#include "tests/tools/dump_program.h"

namespace lockstep {
namespace {

NamedTensors work(const std::string& what, const JitModel& model, const NamedTensors& tensors) {
  const auto in = [&](const std::string& name) { return tensor_of(tensors, name); };
  if (what == "samples") {
    return {{"image_BCHH", sample_images(model, in("noise_BCHH"), in("classes_B"),
                                         {.steps = 5, .guidance = 2.0, .noise_scale = 2.0})}};
  }
  const at::Tensor predicted_BCHH = model(in("z_BCHH"), in("t_B"), in("classes_B"));
  if (what == "images") return {{"image_BCHH", predicted_BCHH}};
  LOCKSTEP_CHECK(what == "gradients", "expected images, gradients, samples or step");
  (predicted_BCHH - in("image_BCHH")).square().sum().backward();
  NamedTensors out;
  for (const NamedTensor& parameter : model.parameters()) {
    out.push_back({"grad/" + parameter.name, parameter.tensor.grad()});
  }
  return out;
}

Status step(const Flags& flags) {
  PosixFileSystem files;
  TRY_ASSIGN(const RunConfig config, parse_run_config({"jit", "--data_path", "generated:12:3", "--img_size", "16",
                                                       "--model", "6x128/4", "--noise_scale", "2", "--t_eps", "0.1"},
                                                      all_workload_flags()));
  TRY_ASSIGN(PreparedImages images, prepare_images(files, "generated:12:3", 16, "", {}));
  TRY_ASSIGN(const auto workload, JitWorkload::create(config, std::move(images), at::kCPU));
  TRY_ASSIGN(const NamedTensors weights, load_weights(files, flags.at("weights")));
  const NamedTensors parameters = parameters_of(*workload);
  TRY(copy_tensors(weights, parameters, flags.at("weights")));
  DeviceBatch batch;
  TRY_ASSIGN(batch.tensors, load_weights(files, flags.at("input")));
  Adam adam(workload->groups(),
            {.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-4, .weight_decay = 0.1, .decoupled_weight_decay = true});
  const at::Tensor loss = workload->loss(batch)[0] / batch["t_B"].size(0);
  loss.backward();
  adam.step(0.01, torch::zeros({}));
  NamedTensors out = parameters;
  out.push_back({"loss", loss.detach()});
  return save_weights(files, flags.at("out"), out);
}

Status run(const std::string& what, const Flags& flags) {
  if (what == "step") return step(flags);
  PosixFileSystem files;
  const JitModel model({.image_size = 16,
                        .patch_size = 4,
                        .num_classes = 3,
                        .depth = 6,
                        .hidden_dim = 128,
                        .num_heads = 2,
                        .bottleneck = 32,
                        .in_context_start = 2},
                       at::Device(at::kCPU));
  TRY_ASSIGN(const NamedTensors weights, load_weights(files, flags.at("weights")));
  TRY(copy_tensors(weights, model.parameters(), flags.at("weights")));
  TRY_ASSIGN(const NamedTensors input, load_weights(files, flags.at("input")));
  return save_weights(files, flags.at("out"), work(what, model, input));
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) { return lockstep::dump_main(argc, argv, lockstep::run); }
