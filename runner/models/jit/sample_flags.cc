#include "runner/models/jit/sample_flags.h"

#include "runner/config/flag_table_builder.h"

namespace lockstep {
namespace {

void add_sample_flags(FlagTableBuilder& table) {
  table.group("Images");
  table.integer("count", kThisProcess, 1, kCountMax, &SampleOptions::count, "images");
  table.text("classes", kThisProcess, "names or numbers with commas between them", &SampleOptions::classes,
             "the classes of the images, taken in turn; none: all");
  Flag& seed = table.custom("seed", kThisProcess, "an integer of at least 0", "the same seed gives the same images");
  seed.set = [](std::string_view text, RunConfig& config) {
    return parse_whole(text, options_of<SampleOptions>(config).seed);
  };
  seed.get = [](const RunConfig& config) { return std::to_string(options_of<SampleOptions>(config).seed); };
  table.group("Sampling");
  table.text("ema", kThisProcess, "one of the decays of --ema_decay in training, or 0", &SampleOptions::ema,
             "the average of the weights to sample from; 0: the trained weights; none: the first average");
  table.integer("steps", kThisProcess, 1, 10000, &SampleOptions::steps, "steps of Heun's method from noise to image");
  table.real("cfg", kThisProcess, 0.0, 1000.0, false, &SampleOptions::guidance, "classifier-free guidance; 1: none");
  table.integer("batch_size", kThisProcess, 1, kCountMax, &SampleOptions::batch_size,
                "images that a rank makes at once; changes no image");
  table.integer("nproc", kThisProcess, 1, 1024, &SampleOptions::nproc,
                "ranks that share the images, each on a GPU of its own where there are; changes no image");
  table.group("Results (--out: a line of JSON about them)");
  table.text("grid", kThisProcess, "a file", &SampleOptions::grid, "a contact sheet as PNG, of at most 1024 images");
  table.text("folder", kThisProcess, "a folder", &SampleOptions::folder, "each image as a file, 000000.png and so on");
  table.group("Distance to the data");
  table.boolean("distance", kThisProcess, &SampleOptions::distance,
                "Frechet distance to the images of --data_path; on simple features (no FID) without --fid_features");
  table.text("fid_features", kThisProcess, "a TorchScript file", &SampleOptions::fid_features,
             "the distance on its features: it is given bytes [B, 3, H, W] and returns [B, F]");
  table.text("fid_stats", kThisProcess, "an .npz file", &SampleOptions::fid_stats,
             "the statistics to compare with, mu and sigma, instead of those of --data_path");
}

Status check_sample(const RunConfig& config) {
  const SampleOptions& options = options_of<SampleOptions>(config);
  if (!options.fid_stats.empty() && options.fid_features.empty()) {
    return invalid("--fid_stats " + options.fid_stats +
                   " holds statistics of the features of a network: give that, too (--fid_features)");
  }
  if (options.grid.empty() && options.folder.empty() && !options.wants_distance()) {
    return invalid(
        "no output was requested: give --grid samples.png (a contact sheet), --folder samples (each as a file) or "
        "--distance");
  }
  if (options.wants_distance() && options.count < 2) {
    return invalid("--count 1: a distance needs at least 2 images, and many to be meaningful");
  }
  return {};
}

}  // namespace

WorkloadTask sample_task() {
  return {.name = "sample",
          .summary = "images from noise, as a contact sheet and as files",
          .examples = {"lockstep jit sample --checkpoint train_default --count 64 --cfg 2.9 --grid samples.png"},
          .set_defaults = [](RunConfig& config) { config.task.options = SampleOptions{}; },
          .add_flags = add_sample_flags,
          .workload_flags = {"data_path", "data_format", "cache_dir", "img_size", "model", "noise_scale", "t_eps"},
          .check = check_sample,
          .average = [](const RunConfig& config) { return options_of<SampleOptions>(config).ema; }};
}

}  // namespace lockstep
