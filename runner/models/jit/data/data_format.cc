#include "runner/models/jit/data/data_format.h"

#include <filesystem>
#include <system_error>

#include "runner/base/plural.h"
#include "runner/data/found_files.h"
#include "runner/models/jit/data/text_files.h"

namespace lockstep {
namespace {

bool is_image_name(const std::string& name) {
  const std::string ending = lower_ending(name);
  return ending == ".jpg" || ending == ".jpeg" || ending == ".png";
}

void count(const std::string& name, FilesSeen& seen) {
  ++(is_image_name(name) ? seen.images : is_text_name(name) ? seen.texts : seen.others);
}

}  // namespace

FilesSeen count_files(const std::string& path, int64_t files_max) {
  FilesSeen seen;
  std::error_code error;
  if (std::filesystem::is_regular_file(path, error)) {
    count(path, seen);
    return seen;
  }
  constexpr int kDepthMax = 8;  // links to folders are followed and may form a cycle
  constexpr auto kOptions = std::filesystem::directory_options::follow_directory_symlink |
                            std::filesystem::directory_options::skip_permission_denied;
  std::filesystem::recursive_directory_iterator entries(path, kOptions, error);
  for (; !error && entries != std::filesystem::end(entries); entries.increment(error)) {
    const std::string name = entries->path().filename().string();
    std::error_code ignored;
    if (name.starts_with('.') || entries.depth() == kDepthMax) {
      entries.disable_recursion_pending();
      if (!name.starts_with('.')) seen.are_all = false;
    } else if (entries->is_regular_file(ignored)) {
      if (seen.images + seen.texts + seen.others == files_max) {
        seen.are_all = false;
        break;
      }
      count(name, seen);
    }
  }
  if (error) seen.are_all = false;
  return seen;
}

std::string to_text(const FilesSeen& seen) {
  std::string text;
  const auto add = [&](int64_t number, const std::string& one) {
    if (number > 0) text += (text.empty() ? "" : " and ") + plural(number, one);
  };
  add(seen.images, "image");
  add(seen.texts, "text file");
  add(seen.others, "other file");
  if (text.empty()) return "no files";
  return seen.are_all ? text : text + " in the part that was looked at";
}

DataFormat likely_format(const FilesSeen& seen) {
  return seen.images == 0 && seen.texts > 0 ? DataFormat::kTokens : DataFormat::kImages;
}

Status check_format(DataFormat format, const FilesSeen& seen, const std::string& path) {
  if (!seen.are_all) return {};
  if (format == DataFormat::kImages && seen.texts > 0 && seen.images == 0 && seen.others == 0) {
    return Error{ErrorCode::kInvalid,
                 "--data_format images: " + path + " holds " + to_text(seen) +
                     " (.txt, .json, .jsonl) and no image: give --data_format tokens to train on texts, "
                     "or a folder of JPEG and PNG files"};
  }
  if (format == DataFormat::kTokens && seen.images > 0 && seen.texts == 0) {
    return Error{ErrorCode::kInvalid,
                 "--data_format tokens: " + path + " holds " + to_text(seen) +
                     " and no texts (.txt, .json, .jsonl): give --data_format images to train on images, "
                     "or a folder of texts"};
  }
  return {};
}

}  // namespace lockstep
