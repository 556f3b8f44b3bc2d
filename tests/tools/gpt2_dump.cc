// gpt2_dump: the text encoder of the GPT-2 recommender on texts and tensors from Python, for the comparison with
// transformers, peft and tokenizers in tests/python/test_gpt2_parity.py.
//
//   gpt2_dump tokens --tokenizer FOLDER --input texts.json --out FILE
//   gpt2_dump hidden|gradients --gpt2 FOLDER --tokenizer FOLDER --input FILE --out FILE [--peft FOLDER] [--pool padded]
//   gpt2_dump movies --out FILE
//   gpt2_dump export --gpt2 FOLDER --tokenizer FOLDER --input FILE --out FOLDER
//
// FILE is safetensors. tokens: a JSON array of texts → tokens [all], lengths [texts]. hidden: tokens [N, T], lengths
// [N] → hidden [N, T, D], pooled [N, D]; without --peft the adapters are as they begin. gradients: also of_pooled [N,
// D], what the loss has as gradient by `pooled` → grad/<adapter>. movies: the generated data set → ratings [R, 2]
// (user, film), kept_back [films], num_users [1]. export: adapters of the input by their names → a folder for peft.
// With --repeats N the work is done so often, and seconds [N] is written too.
#include <torch/types.h>

#include <limits>
#include <string>
#include <vector>

#include "runner/base/check.h"
#include "runner/base/file_system.h"
#include "runner/base/json.h"
#include "runner/checkpoint/reader.h"
#include "runner/checkpoint/weights.h"
#include "runner/models/gpt2rec/data/generated_movies.h"
#include "runner/models/gpt2rec/peft_adapter.h"
#include "runner/models/gpt2rec/text_encoder.h"
#include "tests/support/disk.h"
#include "tests/tools/dump_program.h"

namespace lockstep {
namespace {

std::string flag(const Flags& flags, const std::string& name) {
  return flags.contains(name) ? flags.at(name) : std::string();
}

Status read_peft_folder(const std::string& folder, const NamedTensors& adapters) {
  constexpr std::string_view kPrefix = "base_model.model.";
  const std::string path = join_path(folder, kPeftWeightsFile);
  PosixFileSystem files;
  TRY_ASSIGN(NamedTensors read, load_weights(files, path));
  for (NamedTensor& tensor : read) tensor.name.erase(0, kPrefix.size());
  return copy_tensors(read, adapters, path);
}

Result<NamedTensors> tokens(const Flags& flags) {
  PosixFileSystem files;
  TRY_ASSIGN(const BytePairEncoding tokenizer, BytePairEncoding::load(disk(), flags.at("tokenizer")));
  TRY_ASSIGN(const std::string text, read_file(files, flags.at("input"), std::numeric_limits<int32_t>::max()));
  TRY_ASSIGN(const Json texts, parse_json(text, flags.at("input")));
  std::vector<int64_t> all;
  std::vector<int64_t> lengths;
  for (const Json& one : texts) {
    const std::vector<int32_t> found = tokenizer.encode(one.get<std::string>());
    LOCKSTEP_CHECK(tokenizer.decode(found) == one.get<std::string>(), "tokens give the text back");
    all.insert(all.end(), found.begin(), found.end());
    lengths.push_back(static_cast<int64_t>(found.size()));
  }
  return NamedTensors{{"tokens", at::tensor(all, at::kLong)}, {"lengths", at::tensor(lengths, at::kLong)}};
}

NamedTensors movies() {
  const RatingData data = generated_movies();
  std::vector<int64_t> pairs;
  for (const Rating& rating : data.ratings) pairs.insert(pairs.end(), {rating.user, rating.item});
  const std::vector<int64_t> kept_back(data.is_kept_back.begin(), data.is_kept_back.end());
  return {{"ratings", at::tensor(pairs, at::kLong).view({-1, 2})},
          {"kept_back", at::tensor(kept_back, at::kLong)},
          {"num_users", at::tensor({static_cast<int64_t>(data.users.size())}, at::kLong)}};
}

NamedTensors hidden(const TextEncoder& encoder, const NamedTensors& in) {
  const at::NoGradGuard no_grad;
  Dropouts off;
  return {
      {"hidden", encoder.gpt2().hidden({.tokens_NT = tensor_of(in, "tokens"), .rows_S = {}, .is_seen_NT = {}}, off)},
      {"pooled", encoder.encode(tensor_of(in, "tokens"), tensor_of(in, "lengths"))}};
}

NamedTensors gradients(const TextEncoder& encoder, const NamedTensors& in) {
  for (const NamedTensor& adapter : encoder.adapters()) adapter.tensor.mutable_grad().reset();
  const at::Tensor pooled_ND = encoder.encode(tensor_of(in, "tokens"), tensor_of(in, "lengths"));
  (pooled_ND * tensor_of(in, "of_pooled")).sum().backward();
  NamedTensors out = {{"pooled", pooled_ND}};
  for (const NamedTensor& adapter : encoder.adapters()) out.push_back({"grad/" + adapter.name, adapter.tensor.grad()});
  return out;
}

Status export_adapters(const TextEncoder& encoder, const NamedTensors& in, const std::string& folder) {
  TRY(copy_tensors(in, encoder.adapters(), "the input"));
  TRY_ASSIGN(const PeftFiles made, peft_files(encoder.adapters(), encoder.options().lora, ""));
  PosixFileSystem files;
  TRY(make_directories(files, folder));
  const auto write = [&](const char* name, const std::string& text) {
    return write_file(files, join_path(folder, name),
                      [&](const ByteSink& sink) -> Status { return sink(text.data(), text.size()); });
  };
  TRY(write(kPeftConfigFile, made.config));
  return write(kPeftWeightsFile, made.weights);
}

Status run(const std::string& what, const Flags& flags) {
  PosixFileSystem files;
  if (what == "tokens") {
    TRY_ASSIGN(const NamedTensors out, tokens(flags));
    return save_weights(files, flags.at("out"), out);
  }
  if (what == "movies") return save_weights(files, flags.at("out"), movies());
  const TextEncoderOptions options{.gpt2_folder = flag(flags, "gpt2"),
                                   .tokenizer_folder = flag(flags, "tokenizer"),
                                   .size = {},
                                   .lora = {},
                                   .pool = flag(flags, "pool") == "padded" ? TextPool::kPadded : TextPool::kMaskedMean};
  TRY_ASSIGN(const std::unique_ptr<TextEncoder> encoder, TextEncoder::make(disk(), options, at::Device(at::kCPU)));
  encoder->initialize(/*seed=*/1);
  if (flags.contains("peft")) TRY(read_peft_folder(flags.at("peft"), encoder->adapters()));
  TRY_ASSIGN(const NamedTensors in, load_weights(files, flags.at("input")));
  if (what == "export") return export_adapters(*encoder, in, flags.at("out"));
  LOCKSTEP_CHECK(what == "hidden" || what == "gradients", "expected tokens, movies, hidden, gradients or export");
  const auto work = [&] { return what == "hidden" ? hidden(*encoder, in) : gradients(*encoder, in); };
  return save_weights(files, flags.at("out"), repeated(flags, work));
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) { return lockstep::dump_main(argc, argv, lockstep::run); }
