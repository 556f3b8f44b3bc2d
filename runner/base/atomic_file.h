// Replaces a file atomically: after a crash at any moment it holds either the old content or the new.
//
// Role: `latest`, exports, weight files, small state. Writes a temporary file, fsyncs it, renames it over the file and
// fsyncs the folder.
// Threads: concurrent writers of one path need different temporary files.
// Errors: those of FileSystem; the temporary file is removed, the old file stays.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "runner/base/file_system.h"
#include "runner/base/result.h"

namespace lockstep {

// `temporary`: a path on the same volume; empty: `.tmp-NAME` beside the file.
Status write_file_atomically(FileSystem& fs, const std::string& path, std::string_view bytes,
                             const std::string& temporary = {});

// The same without the whole content in memory: `produce` sends the bytes to its sink.
Status write_file_atomically(FileSystem& fs, const std::string& path,
                             const std::function<Status(const ByteSink&)>& produce, const std::string& temporary = {});

}  // namespace lockstep
