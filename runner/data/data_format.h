// What kind of files lie in a folder: images or texts.
//
// Threads: functions; only look_at_files reads the disk.
#pragma once

#include <cstdint>
#include <string>

#include "runner/base/result.h"

namespace lockstep {

// Counted by the endings of their names: .jpg, .jpeg, .png; .txt, .json.
struct FilesSeen {
  int64_t images = 0;
  int64_t texts = 0;
  int64_t others = 0;
  bool are_all = true;  // false: only the first ones were looked at
};

// The first files of a folder, in any order, without hidden ones, links to folders followed; or of a file itself. A
// path that cannot be read holds none: whoever reads it next says why.
FilesSeen look_at_files(const std::string& path, int64_t files_max = 1000);

// "12 images and 3 texts", "no files"
std::string to_text(const FilesSeen& seen);

enum class DataFormat { kImages, kTokens };

// Texts where there is no image; captions may lie beside images.
DataFormat likely_format(const FilesSeen& seen);
// Error (kInvalid): there are only files of the other kind; says what was found and what to do.
Status check_format(DataFormat format, const FilesSeen& seen, const std::string& path);

}  // namespace lockstep
