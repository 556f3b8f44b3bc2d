// pixel_dlm_dump: the guide's variant of JiT on tensors from Python, for the comparison with the twin in
// tests/python/test_jit_tokens.py, and what its data are made of.
//
//   pixel_dlm_dump images|gradients --size SIDE,PATCH,DEPTH,WIDTH,HEADS --weights FILE --input FILE --out FILE
//   pixel_dlm_dump step --data PATH --weights FILE --out FILE
//   pixel_dlm_dump tokens --tokenizer FOLDER --data PATH --side SIDE --out FILE
//
// --input (safetensors): z_BCHH, t_B, is_token_BHH (uint8); for gradients image_BCHH, too.
// --out: images: image_BCHH. gradients: loss, the guide's over the tokens, and grad/<parameter> of it. step: the
// workload itself on the texts of PATH as bytes, 16 x 16 pixels, --model 2x64/4: a batch as PixelDlmWorkload::fetch
// makes it, its weight, and the loss. tokens: pixels, [texts, SIDE, SIDE, 3] in the order of the cache, and
// end_of_text.
#include <torch/types.h>

#include <algorithm>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "runner/base/check.h"
#include "runner/base/file_system.h"
#include "runner/checkpoint/reader.h"
#include "runner/checkpoint/weights.h"
#include "runner/models/jit/data/prepare_images.h"
#include "runner/models/jit/data/token_images.h"
#include "runner/models/jit/pixel_dlm_model.h"
#include "runner/models/jit/pixel_dlm_workload.h"
#include "runner/models/workload_flags.h"
#include "tests/support/disk.h"
#include "tests/tools/dump_program.h"

namespace lockstep {
namespace {

PixelDlmShape shape_of(const std::string& text) {
  std::vector<int64_t> numbers;
  std::istringstream stream(text);
  for (std::string number; std::getline(stream, number, ',');) numbers.push_back(std::stoll(number));
  return {.image_size = numbers.at(0),
          .patch_size = numbers.at(1),
          .depth = numbers.at(2),
          .hidden_dim = numbers.at(3),
          .num_heads = numbers.at(4)};
}

NamedTensors work(const std::string& what, const PixelDlmModel& model, const NamedTensors& tensors) {
  const auto in = [&](const std::string& name) { return tensor_of(tensors, name); };
  const at::Tensor is_token_BHH = in("is_token_BHH") != 0;
  const at::Tensor predicted_BCHH = model(in("z_BCHH"), in("t_B"), is_token_BHH);
  if (what == "images") return {{"image_BCHH", predicted_BCHH}};
  LOCKSTEP_CHECK(what == "gradients", "expected images, gradients or tokens");
  const at::Tensor loss = token_loss(predicted_BCHH, in("image_BCHH"), is_token_BHH) / is_token_BHH.sum();
  loss.backward();
  NamedTensors out = {{"loss", loss.detach()}};
  for (const NamedTensor& parameter : model.trained()) {
    out.push_back({"grad/" + parameter.name, parameter.tensor.grad()});
  }
  return out;
}

Status run_model(const std::string& what, const Flags& flags) {
  PosixFileSystem files;
  const PixelDlmModel model(shape_of(flags.at("size")), at::Device(at::kCPU));
  TRY_ASSIGN(const NamedTensors weights, load_weights(files, flags.at("weights")));
  NamedTensors all = model.trained();
  const NamedTensors buffers = model.buffers();
  all.insert(all.end(), buffers.begin(), buffers.end());
  TRY(copy_tensors(weights, all, flags.at("weights")));
  TRY_ASSIGN(const NamedTensors input, load_weights(files, flags.at("input")));
  return save_weights(files, flags.at("out"), work(what, model, input));
}

Status run_step(const Flags& flags) {
  PosixFileSystem files;
  const std::string& data = flags.at("data");
  TRY_ASSIGN(const RunConfig config, parse_run_config({"jit", "--data_format", "tokens", "--data_path", data,
                                                       "--img_size", "16", "--model", "2x64/4"},
                                                      all_workload_flags()));
  TRY_ASSIGN(const auto source, find_token_images(disk(), data, 16, 256, BytePairEncoding::of_bytes(), [] {}));
  TRY_ASSIGN(PreparedImages pictures, prepare_images(files, *source, "", {}));
  TRY_ASSIGN(const auto workload, PixelDlmWorkload::create(config, std::move(pictures), "bytes", at::kCPU));
  TRY_ASSIGN(const NamedTensors weights, load_weights(files, flags.at("weights")));
  NamedTensors all = parameters_of(*workload);
  const NamedTensors buffers = workload->buffers();
  all.insert(all.end(), buffers.begin(), buffers.end());
  TRY(copy_tensors(weights, all, flags.at("weights")));
  BatchShare share{.seed = 5, .step = 0, .epoch = 3, .first_slot = 0};
  for (int64_t sample = 0; sample < 12; ++sample) share.samples.push_back(sample);
  TRY_ASSIGN(const HostBatch fetched, workload->fetch(share));
  const at::Tensor loss = workload->loss({.share = share, .tensors = fetched.tensors})[0];
  NamedTensors out = fetched.tensors;
  out.push_back({"weight", torch::tensor(fetched.weights, torch::kDouble)});
  out.push_back({"loss", loss.detach()});
  return save_weights(files, flags.at("out"), out);
}

Status run_tokens(const Flags& flags) {
  PosixFileSystem files;
  const int64_t side = std::stoll(flags.at("side"));
  TRY_ASSIGN(BytePairEncoding tokenizer, BytePairEncoding::load(disk(), flags.at("tokenizer")));
  const at::Tensor end = torch::tensor(static_cast<int64_t>(tokenizer.end_of_text()));
  TRY_ASSIGN(const auto source,
             find_token_images(disk(), flags.at("data"), side, side * side, std::move(tokenizer), [] {}));
  TRY_ASSIGN(const PreparedImages prepared, prepare_images(files, *source, "", {}));
  const at::Tensor pixels = torch::empty({prepared.cache.size(), side, side, 3}, torch::kByte);
  for (int64_t i = 0; i < prepared.cache.size(); ++i) {
    TRY_ASSIGN(const auto of_text, prepared.cache.pixels(i));
    std::copy(of_text.begin(), of_text.end(), pixels[i].mutable_data_ptr<uint8_t>());
  }
  return save_weights(files, flags.at("out"), {{"pixels", pixels}, {"end_of_text", end}});
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  return lockstep::dump_main(argc, argv, [](const std::string& what, const lockstep::Flags& flags) {
    if (what == "tokens") return lockstep::run_tokens(flags);
    return what == "step" ? lockstep::run_step(flags) : lockstep::run_model(what, flags);
  });
}
