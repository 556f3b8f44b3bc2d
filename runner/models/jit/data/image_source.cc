#include "runner/models/jit/data/image_source.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <set>
#include <system_error>
#include <utility>

#include "runner/base/plural.h"
#include "runner/data/found_files.h"
#include "runner/models/jit/data/centre_crop.h"
#include "runner/models/jit/data/generated_images.h"
#include "runner/models/jit/data/image_cache.h"
#include "runner/models/jit/data/image_file.h"

namespace lockstep {
namespace {

constexpr std::string_view kExpectedImages =
    "expected a folder of JPEG and PNG files: FOLDER/CLASS/FILE, FOLDER/train/CLASS/FILE, or files alone for a model "
    "without classes";
constexpr uint64_t kImageFileBytesMax = uint64_t{1} << 30;

std::string ending_of_image(const std::string& name) { return std::filesystem::path(name).extension().string(); }

class ImageFolder final : public ImageSource {
 public:
  struct Listing {
    std::vector<FoundFile> files;
    std::vector<int64_t> labels;  // label of each file; -1: the file is beside the class folders, in none of them
    std::vector<std::string> classes;
    std::vector<SkippedFile> left_out;
  };
  ImageFolder(FileSystem& fs, Listing listing, int64_t side) : fs_(fs), listing_(std::move(listing)), side_(side) {}

  [[nodiscard]] std::string summary() const override {
    const size_t classes = listing_.classes.size();
    const std::string in_classes = classes == 0 ? "" : " in " + plural(classes, "class");
    return plural(listing_.files.size(), "file") + in_classes + " (" +
           counts_by_ending(listing_.files, ending_of_image) + ")";
  }
  [[nodiscard]] std::vector<SkippedFile> remarks() const override { return listing_.left_out; }
  [[nodiscard]] int64_t size() const override { return static_cast<int64_t>(listing_.files.size()); }
  [[nodiscard]] std::string name(int64_t i) const override { return file(i).relative; }
  [[nodiscard]] Result<std::vector<LabelledImage>> read(int64_t i) const override {
    LabelledImage image;
    image.label = listing_.labels[static_cast<size_t>(i)];
    if (image.label < 0) return Error{ErrorCode::kInvalid, "lies beside the class folders, in none of them"};
    TRY_ASSIGN(const std::string bytes, read_file(fs_, file(i).path, kImageFileBytesMax));
    TRY_ASSIGN(Image decoded, decode_image(bytes, side_));
    image.rgb = centre_crop(std::move(decoded), side_).rgb;
    std::vector<LabelledImage> images;
    images.push_back(std::move(image));
    return images;
  }
  [[nodiscard]] std::string fingerprint() const override {
    std::string text = std::to_string(side_) + " pixels\n" + fingerprint_of(listing_.files) + "classes\n";
    for (const std::string& name : listing_.classes) text += name + "\n";
    return text;
  }
  [[nodiscard]] int64_t image_side() const override { return side_; }
  [[nodiscard]] const std::vector<std::string>& classes() const override { return listing_.classes; }

 private:
  [[nodiscard]] const FoundFile& file(int64_t i) const { return listing_.files[static_cast<size_t>(i)]; }

  FileSystem& fs_;
  Listing listing_;
  int64_t side_;
};

class GeneratedImages final : public ImageSource {
 public:
  GeneratedImages(const GeneratedImagesSpec& spec, int64_t side)
      : spec_(spec), side_(side), classes_(generated_classes(spec)) {}

  [[nodiscard]] std::string summary() const override {
    return plural(spec_.count, "generated image") + " of " + plural(spec_.classes, "class");
  }
  [[nodiscard]] int64_t size() const override { return spec_.count; }
  [[nodiscard]] std::string name(int64_t i) const override { return "generated-" + std::to_string(i + 1); }
  [[nodiscard]] Result<std::vector<LabelledImage>> read(int64_t i) const override {
    return std::vector<LabelledImage>{generated_image(spec_, i, side_)};
  }
  [[nodiscard]] std::string fingerprint() const override {
    return summary() + " " + std::to_string(side_) + " " + std::to_string(spec_.seed);
  }
  [[nodiscard]] int64_t image_side() const override { return side_; }
  [[nodiscard]] const std::vector<std::string>& classes() const override { return classes_; }

 private:
  GeneratedImagesSpec spec_;
  int64_t side_;
  std::vector<std::string> classes_;
};

// The folder of the images may be that of their caches, too (prepare_images.h).
bool is_cache_name(const std::string& name) { return name.starts_with("images-") && name.ends_with(".cache"); }

struct NamesIn {
  std::vector<std::string> folders;
  std::vector<std::string> files;
  std::vector<SkippedFile> left_out;
};

// Names in a folder, sorted: its folders and links to folders, its files, and links that lead nowhere. Hidden ones are
// left out, and so are caches.
Result<NamesIn> names_in(const std::string& folder) {
  NamesIn names;
  auto& [folders, files, left_out] = names;
  std::error_code error;
  std::filesystem::directory_iterator entries(folder, error);
  for (; !error && entries != std::filesystem::end(entries); entries.increment(error)) {
    const std::string name = entries->path().filename().string();
    if (name.starts_with('.') || name == "lost+found") continue;
    std::error_code ignored;
    if (entries->is_directory(ignored)) {
      folders.push_back(name);
    } else if (entries->is_regular_file(ignored) && !is_cache_name(name)) {
      files.push_back(name);
    } else if (std::string why = why_not_there(entries->path().string()); !why.empty()) {
      left_out.push_back({name, std::move(why)});
    }
  }
  if (error) return Error{ErrorCode::kUnavailable, "cannot read the folder " + folder + ": " + error.message()};
  std::sort(folders.begin(), folders.end());
  std::sort(files.begin(), files.end());
  std::sort(left_out.begin(), left_out.end(),
            [](const SkippedFile& a, const SkippedFile& b) { return a.file < b.file; });
  return names;
}

bool holds_train_alone(const std::vector<std::string>& folders) {
  const std::set<std::string> sets = {"train", "val", "valid", "validation", "test"};
  return std::find(folders.begin(), folders.end(), "train") != folders.end() &&
         std::all_of(folders.begin(), folders.end(), [&](const std::string& name) { return sets.contains(name); });
}

// The files of `root`, with class folders or without. Names are relative to the source: prefix + name.
Result<ImageFolder::Listing> list_images(const std::string& root, const std::string& prefix, const NamesIn& names,
                                         const std::function<void()>& on_progress) {
  const auto& [folders, files, links] = names;
  ImageFolder::Listing listing;
  for (const SkippedFile& link : links) listing.left_out.push_back({prefix + link.file, link.reason});
  for (const std::string& folder : folders) {
    std::vector<SkippedFile> in_folder;
    TRY_ASSIGN(std::vector<FoundFile> found, files_below(join_path(root, folder), on_progress, in_folder));
    for (const SkippedFile& file : in_folder) {
      listing.left_out.push_back({prefix + join_path(folder, file.file), file.reason});
    }
    for (FoundFile& file : found) {
      file.relative = prefix + join_path(folder, file.relative);
      listing.files.push_back(std::move(file));
      listing.labels.push_back(static_cast<int64_t>(listing.classes.size()));
    }
    listing.classes.push_back(folder);
  }
  for (const std::string& name : files) {
    TRY_ASSIGN(FoundFile file, file_at(join_path(root, name), prefix + name));
    listing.files.push_back(std::move(file));
    listing.labels.push_back(folders.empty() ? 0 : -1);
    if (listing.files.size() % 1000 == 0) on_progress();
  }
  return listing;
}

}  // namespace

Result<std::unique_ptr<ImageSource>> find_images(FileSystem& fs, const std::string& path, int64_t side,
                                                 const std::function<void()>& on_progress) {
  if (side < 1 || side > kImageSideMax) {
    return Error{ErrorCode::kInvalid, "images of " + std::to_string(side) +
                                          " pixels cannot be prepared; expected 1 to " + std::to_string(kImageSideMax)};
  }
  TRY_ASSIGN(const std::optional<GeneratedImagesSpec> generated, parse_generated_images(path));
  if (generated) return std::unique_ptr<ImageSource>(std::make_unique<GeneratedImages>(*generated, side));
  TRY_ASSIGN(const std::filesystem::file_status status, status_of(path, kExpectedImages));
  if (!std::filesystem::is_directory(status)) {
    return Error{ErrorCode::kInvalid, path + " is no folder; " + std::string(kExpectedImages)};
  }
  TRY_ASSIGN(auto names, names_in(path));
  std::string root = path;
  std::string prefix;
  if (holds_train_alone(names.folders)) {
    root = join_path(path, "train");
    prefix = "train/";
    TRY_ASSIGN(names, names_in(root));
  }
  TRY_ASSIGN(ImageFolder::Listing listing, list_images(root, prefix, names, on_progress));
  if (listing.files.empty()) {
    return Error{ErrorCode::kInvalid,
                 "no images in " + root + ": found " +
                     (names.folders.empty() ? "no files" : plural(names.folders.size(), "folder") + " without files") +
                     left_out_text(listing.left_out) + ", " + std::string(kExpectedImages)};
  }
  return std::unique_ptr<ImageSource>(std::make_unique<ImageFolder>(fs, std::move(listing), side));
}

}  // namespace lockstep
