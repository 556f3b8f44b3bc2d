// Which kind of files a folder holds: images or texts.
//
// Threads: functions; only count_files reads the disk.
#pragma once

#include <cstdint>
#include <string>

#include "runner/base/result.h"

namespace lockstep {

// Numbers of files by the endings of their names: .jpg, .jpeg, .png; .txt, .json, .jsonl, .ndjson.
struct FilesSeen {
  int64_t images = 0;
  int64_t texts = 0;
  int64_t others = 0;
  bool are_all = true;  // false: only the first ones were looked at
};

// Counts the first files_max files below a folder, in any order; hidden ones are ignored, links to folders are
// followed. `path` may also be a file. For a path that cannot be read all counts are 0; the code that reads it next
// reports why.
FilesSeen count_files(const std::string& path, int64_t files_max = 1000);

// "12 images and 3 texts", "no files"
std::string to_text(const FilesSeen& seen);

enum class DataFormat { kImages, kTokens };

// kTokens when there are texts and no images, else kImages: texts beside images may be captions.
DataFormat likely_format(const FilesSeen& seen);
// Error (kInvalid): there are only files of the other kind; says what was found and what to do.
Status check_format(DataFormat format, const FilesSeen& seen, const std::string& path);

}  // namespace lockstep
