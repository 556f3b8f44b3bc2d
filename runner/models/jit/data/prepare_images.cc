#include "runner/models/jit/data/prepare_images.h"

#include <memory>
#include <vector>

#include "runner/data/generated_name.h"

namespace lockstep {
namespace {

// Refuses a class without images: a model would learn nothing about it, but sampling would still offer it.
Status check_classes(const PreparedImages& prepared, const std::string& path) {
  const ImageCache& cache = prepared.cache;
  std::vector<bool> has_images(cache.classes().size());
  for (int64_t i = 0; i < cache.size() && !has_images.empty(); ++i) {
    has_images[static_cast<size_t>(cache.label(i))] = true;
  }
  for (size_t label = 0; label < has_images.size(); ++label) {
    if (has_images[label]) continue;
    const std::string& name = cache.classes()[label];
    std::string reason = "it has no files";
    std::vector<SkippedFile> left_out = cache.skipped();
    left_out.insert(left_out.end(), prepared.remarks.begin(), prepared.remarks.end());
    for (const SkippedFile& file : left_out) {
      if (!file.file.starts_with(name + "/") && !file.file.starts_with("train/" + name + "/")) continue;
      reason = "such as " + file.file + ": " + file.reason;
      break;
    }
    return Error{ErrorCode::kInvalid, "class folder " + name + " in " + path + " has no image that can be read (" +
                                          reason + "); put images there, or remove the folder"};
  }
  return {};
}

}  // namespace

Result<PreparedImages> prepare_images(FileSystem& fs, const std::string& path, int64_t side,
                                      const std::string& cache_folder, const PrepareOptions& options) {
  TRY_ASSIGN(const std::unique_ptr<ImageSource> source,
             find_images(fs, path, side, [&] { static_cast<void>(options.progress(0, 0)); }));
  // Generated images need no cache file: making them again is as fast as reading one.
  TRY_ASSIGN(PreparedImages prepared, prepare_images(fs, *source, is_generated(path) ? "" : cache_folder, options));
  TRY(check_classes(prepared, path));
  return prepared;
}

std::vector<std::pair<std::string, std::string>> rows_of_left_out(const PreparedImages& prepared, bool show_all) {
  constexpr const char* kLabel = "left out";
  const std::vector<SkippedFile>& skipped = prepared.cache.skipped();
  std::vector<std::pair<std::string, std::string>> rows;
  if (show_all) {
    rows = rows_of_files(kLabel, skipped, true);
  } else if (!skipped.empty()) {
    rows.emplace_back(kLabel, skipped_summary(skipped));
  }
  const auto more = rows_of_files(kLabel, prepared.remarks, show_all);
  rows.insert(rows.end(), more.begin(), more.end());
  return rows;
}

Result<PreparedImages> prepare_images(FileSystem& fs, const ImageSource& source, const std::string& cache_folder,
                                      const PrepareOptions& options) {
  const auto read = [&source](int64_t i) -> Result<std::vector<PieceRecord>> {
    TRY_ASSIGN(std::vector<LabelledImage> images, source.read(i));
    std::vector<PieceRecord> records;
    for (LabelledImage& image : images) {
      records.push_back({.bytes = {image.rgb.begin(), image.rgb.end()}, .tag = static_cast<uint32_t>(image.label)});
      image.rgb = {};  // a piece of texts has many images: they are not held twice
    }
    return records;
  };
  const RecordKind kind{.format = kImageCache,
                        .many = "images",
                        .facts = image_facts(source.image_side(), source.classes()),
                        .record_bytes = static_cast<size_t>(source.image_side() * source.image_side() * 3),
                        .read = read};
  TRY_ASSIGN(Prepared<RecordCache> prepared, prepare_cache(fs, source, kind, cache_folder, options));
  TRY_ASSIGN(ImageCache cache, ImageCache::from_records(std::move(prepared.cache)));
  return prepared_as(std::move(cache), std::move(prepared));
}

}  // namespace lockstep
