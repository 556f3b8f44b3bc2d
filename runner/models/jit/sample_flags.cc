#include "runner/models/jit/sample_flags.h"

#include <any>

#include "runner/config/flag_table_builder.h"

namespace lockstep {
namespace {

constexpr FlagScope kOfSample = FlagScope::kThisProcess;

#define OPTION(member) \
  [](auto& config) -> auto& { return sample_options(config).member; }

void add_sample_flags(FlagTableBuilder& table) {
  table.group("Images");
  table.integer("count", kOfSample, 1, kCountMax, OPTION(count), "images");
  table.text("classes", kOfSample, "names or numbers with commas between them", OPTION(classes),
             "the classes that they take in turn; none: all");
  Flag& seed = table.custom("seed", kOfSample, "an integer of at least 0", "the same seed gives the same images");
  seed.set = [](std::string_view text, RunConfig& config) { return parse_whole(text, sample_options(config).seed); };
  seed.get = [](const RunConfig& config) { return std::to_string(sample_options(config).seed); };
  table.group("Sampling");
  table.integer("steps", kOfSample, 1, 10000, OPTION(steps), "steps of Heun's method from noise to image");
  table.real("cfg", kOfSample, 0.0, 1000.0, false, OPTION(guidance), "classifier-free guidance; 1: none");
  table.integer("batch_size", kOfSample, 1, kCountMax, OPTION(batch_size), "images at once; changes no image");
  table.group("Results (--out: a picture of all of them, as PNG)");
  table
      .text("folder", kOfSample, "a folder", OPTION(folder),
            "each image as a file of its own, 000000.png and so on; none: only the picture of --out")
      .names_path = NamesPath::kFolder;
}

#undef OPTION

}  // namespace

WorkloadTask sample_task() {
  return {.name = "sample",
          .summary = "images from noise, as a contact sheet and as files",
          .example = "lockstep jit sample --checkpoint train_default --count 64 --cfg 2.9 --out samples.png",
          .set_defaults = [](RunConfig& config) { config.task.options = SampleOptions{}; },
          .add_flags = add_sample_flags,
          .workload_flags = {"data_path", "data_format", "cache_dir", "img_size", "model", "noise_scale", "t_eps"},
          .check = [](const RunConfig&) { return Status(); }};
}

const SampleOptions& sample_options(const RunConfig& config) {
  return std::any_cast<const SampleOptions&>(config.task.options);
}

SampleOptions& sample_options(RunConfig& config) { return std::any_cast<SampleOptions&>(config.task.options); }

}  // namespace lockstep
