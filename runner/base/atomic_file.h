// A file that is either the old one or the new one, whatever dies when.
//
// Role: `latest`, exports, weight files, small state. Writes `.tmp-[tag-]NAME` beside the file, fsyncs it, renames it
// over the file and fsyncs the folder.
// Threads: concurrent writers of one path need different tags.
// Errors: those of FileSystem; the temporary file is removed, the old file stays.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "runner/base/file_system.h"
#include "runner/base/result.h"

namespace lockstep {

inline constexpr std::string_view kTemporaryPrefix = ".tmp-";

Status write_file_atomically(FileSystem& fs, const std::string& path, std::string_view bytes,
                             std::string_view tag = {});

// The same for what is too large for memory twice: `produce` sends the bytes to its sink.
Status write_file_atomically(FileSystem& fs, const std::string& path,
                             const std::function<Status(const ByteSink&)>& produce, std::string_view tag = {});

}  // namespace lockstep
