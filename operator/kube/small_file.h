// Reads small files that people or Kubernetes provide: configuration, certificates, tokens. Follows symbolic links,
// which mounted Secrets and service account tokens consist of. What is no plain file is refused and not opened, so that
// a named pipe is not waited for, unless it takes the file's place just then.
#pragma once

#include <string>

#include "runner/base/result.h"

namespace lockstep::kube {

inline constexpr size_t kSmallFileBytesMax = size_t{4} << 20;

// The whole file. kNotFound when there is none, kUnavailable for other errors of the system, kInvalid when it is not a
// plain file or larger than kSmallFileBytesMax.
Result<std::string> read_small_file(const std::string& path);

// Changes whenever the file does: a text of device, inode, size and time of change; empty when there is no file.
std::string file_signature(const std::string& path);

}  // namespace lockstep::kube
