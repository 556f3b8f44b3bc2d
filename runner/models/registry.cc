#include "runner/models/registry.h"

#include <ATen/Parallel.h>

#include <cstdint>
#include <string>
#include <utility>

#include "runner/base/file_system.h"
#include "runner/data/data_format.h"
#include "runner/data/dataset.h"
#include "runner/data/images/prepare_images.h"
#include "runner/data/structures/prepare_structures.h"
#include "runner/data/text/token_images.h"
#include "runner/models/gpt2rec/gpt2rec_flags.h"
#include "runner/models/gpt2rec/gpt2rec_workload.h"
#include "runner/models/gpt2rec/recommend_films.h"
#include "runner/models/jit/jit_flags.h"
#include "runner/models/jit/jit_workload.h"
#include "runner/models/jit/pixel_dlm_workload.h"
#include "runner/models/jit/sample_task.h"
#include "runner/models/protein/mdm_workload.h"
#include "runner/models/protein/mpnn_tasks.h"
#include "runner/models/protein/mpnn_workload.h"
#include "runner/models/protein/protein_flags.h"
#include "runner/models/sasrec/recommend.h"
#include "runner/models/sasrec/sasrec_flags.h"
#include "runner/models/sasrec/sasrec_workload.h"

namespace lockstep {
namespace {

template <typename Made>
WorkloadOrFailure workload_or_failure(Result<std::unique_ptr<Made>> workload) {
  if (!workload.ok()) return data_failure(workload.error().message);
  return std::unique_ptr<Workload>(std::move(workload).value());
}

WorkloadOrFailure make_sasrec(const RunConfig& config, at::Device device, const OnDataProgress& on_progress) {
  const Status flags = sasrec_flags().check(config);
  if (!flags.ok()) return usage_failure(flags.error().message);
  const SasrecOptions& options = sasrec_options(config);
  ReadOptions read{.min_count = options.min_count, .max_bad_lines = options.max_bad_lines};
  if (config.training.verbose) read.names_max = SIZE_MAX;
  Result<Dataset> dataset = load_dataset(options.dataset, options.data_dir, read, [&] { on_progress(0, 0); });
  if (!dataset.ok()) return data_failure(dataset.error().message);
  return workload_or_failure(SasrecWorkload::create(config, std::move(dataset).value(), device));
}

WorkloadOrFailure make_gpt2rec(const RunConfig& config, at::Device device, const OnDataProgress& on_progress) {
  const Status flags = gpt2rec_flags().check(config);
  if (!flags.ok()) return usage_failure(flags.error().message);
  const Gpt2recOptions& options = gpt2rec_options(config);
  constexpr size_t kNamesShown = 3;
  Result<RatingData> ratings = load_rating_data(
      options.data_path, [&] { on_progress(0, 0); }, config.training.verbose ? SIZE_MAX : kNamesShown);
  if (!ratings.ok()) return data_failure(ratings.error().message);
  on_progress(0, 0);
  Result<std::unique_ptr<TextEncoder>> encoder = TextEncoder::make(text_encoder_options(options), device);
  if (!encoder.ok()) return data_failure(encoder.error().message);
  on_progress(0, 0);
  return workload_or_failure(Gpt2recWorkload::create(config, *ratings, std::move(encoder).value(), device));
}

// The ranks of a node prepare the data together, each starting at another part of it. Each rank uses as many threads as
// ATen gives its operators, which the worker has set to its share of the node's cores.
PrepareOptions prepare_options(const OnDataProgress& on_progress) {
  return {.threads = at::get_num_threads(), .progress = [&](int64_t done, int64_t total) {
            on_progress(done, total);
            return true;
          }};
}

WorkloadOrFailure make_pixel_dlm(const RunConfig& config, at::Device device, const OnDataProgress& on_progress) {
  const JitOptions& options = jit_options(config);
  const std::string& folder = options.tokenizer_path;
  Result<BytePairEncoding> tokenizer = folder.empty() ? BytePairEncoding::of_bytes() : BytePairEncoding::load(folder);
  if (!tokenizer.ok()) return data_failure("--tokenizer_path: " + tokenizer.error().message);
  const std::string tokenizer_text =
      folder.empty() ? "bytes (no --tokenizer_path)" : folder + ", " + std::to_string(tokenizer->size()) + " tokens";
  const int64_t tokens_max = options.max_tokens.value_or(options.image_size * options.image_size);
  Result<std::unique_ptr<ImageSource>> source = find_token_images(options.data_path, options.image_size, tokens_max,
                                                                  std::move(*tokenizer), [&] { on_progress(0, 0); });
  if (!source.ok()) return data_failure(source.error().message);
  PosixFileSystem fs;
  Result<PreparedImages> prepared =
      prepare_images(fs, **source, image_cache_folder(options), prepare_options(on_progress));
  if (!prepared.ok()) return data_failure(prepared.error().message);
  return workload_or_failure(PixelDlmWorkload::create(config, std::move(*prepared), tokenizer_text, device));
}

WorkloadOrFailure make_jit(const RunConfig& config, at::Device device, const OnDataProgress& on_progress) {
  const Status flags = jit_flags().check(config);
  if (!flags.ok()) return usage_failure(flags.error().message);
  const JitOptions& options = jit_options(config);
  const bool is_tokens = options.data_format == JitData::kTokens;
  const Status fits = check_format(is_tokens ? DataFormat::kTokens : DataFormat::kImages,
                                   look_at_files(options.data_path), options.data_path);
  if (!fits.ok()) return data_failure(fits.error().message);
  if (is_tokens) return make_pixel_dlm(config, device, on_progress);
  PosixFileSystem fs;
  Result<PreparedImages> prepared = prepare_images(fs, options.data_path, options.image_size,
                                                   image_cache_folder(options), prepare_options(on_progress));
  if (!prepared.ok()) return data_failure(prepared.error().message);
  return workload_or_failure(JitWorkload::create(config, std::move(*prepared), device));
}

WorkloadOrFailure make_protein(const RunConfig& config, at::Device device, const OnDataProgress& on_progress) {
  const Status flags = protein_flags().check(config);
  if (!flags.ok()) return usage_failure(flags.error().message);
  const ProteinOptions& options = protein_options(config);
  PosixFileSystem fs;
  PrepareOptions prepare = prepare_options(on_progress);
  // --cache_dir alone would choose the other model.
  if (options.variant == ProteinVariant::kMpnn) prepare.cache_flags += " --variant mpnn";
  Result<PreparedStructures> prepared =
      prepare_structures(fs, options.pdb_path, cache_folder_of(options), prepare,
                         options.use_predefined_split ? SplitLists::kUsed : SplitLists::kIgnored);
  if (!prepared.ok()) return data_failure(prepared.error().message);
  SourceNotes notes{.found = prepared->summary, .remarks = prepared->remarks};
  if (options.variant == ProteinVariant::kMdm) {
    return workload_or_failure(MdmWorkload::create(config, std::move(prepared->cache), device, std::move(notes)));
  }
  return workload_or_failure(MpnnWorkload::create(config, std::move(prepared->cache), device, std::move(notes)));
}

}  // namespace

WorkloadOrFailure make_workload(const RunConfig& config, at::Device device, const OnDataProgress& on_progress) {
  if (config.workload == "sasrec") return make_sasrec(config, device, on_progress);
  if (config.workload == "gpt2rec") return make_gpt2rec(config, device, on_progress);
  if (config.workload == "protein") return make_protein(config, device, on_progress);
  if (config.workload == "jit") return make_jit(config, device, on_progress);
  return usage_failure("workload " + config.workload + " is not known, expected sasrec, gpt2rec, protein or jit");
}

std::optional<Failure> run_task(const TaskInput& input) {
  if (input.config.workload == "sasrec" && input.config.task.name == "recommend") return recommend(input);
  if (input.config.workload == "gpt2rec" && input.config.task.name == "recommend") return recommend_films(input);
  if (input.config.workload == "jit" && input.config.task.name == "sample") {
    if (jit_options(input.config).data_format == JitData::kTokens) {
      return usage_failure("lockstep jit sample makes images, and " + input.config.task.checkpoint +
                           " is of --data_format tokens: give a checkpoint of --data_format images");
    }
    return sample_jit(input);
  }
  if (input.config.workload == "protein") {
    const std::string& task = input.config.task.name;
    if (protein_options(input.config).variant != ProteinVariant::kMpnn) {
      return usage_failure("lockstep protein " + task + " needs a ProteinMPNN checkpoint; " +
                           input.config.task.checkpoint +
                           " was trained with --variant mdm: give one of --variant mpnn");
    }
    if (task == "score") return mpnn_score(input);
    if (task == "design") return mpnn_design(input);
  }
  return usage_failure("workload " + input.config.workload + " has no task " + input.config.task.name);
}

}  // namespace lockstep
