// The files of a data set's folder, as sources list them.
//
// Threads: pure functions of what the disk holds.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "runner/base/result.h"
#include "runner/data/cache_file.h"

namespace lockstep {

struct FoundFile {
  std::string relative;  // path relative to the folder; for a file that was given itself its name
  std::string path;
  int64_t bytes = 0;
  int64_t changed_ns = 0;  // since 1970
};

// Whether a data set's path is a file or a folder. Errors: kNotFound, whose message ends with `expected` ("expected a
// folder of …"); kUnavailable.
Result<std::filesystem::file_status> status_of(const std::string& path, std::string_view expected);

// Errors: those of the disk; kInvalid when it is no regular file.
Result<FoundFile> file_at(const std::string& path, std::string relative);

// All files below a folder, sorted; without hidden ones and lost+found. Links are followed, to folders too. What is
// left out of them, because a link leads nowhere or in a circle or because it is no regular file, is added to
// `left_out`, under paths relative to the folder. Errors: kUnavailable. on_progress is called now and then.
Result<std::vector<FoundFile>> files_below(const std::string& folder, const std::function<void()>& on_progress,
                                           std::vector<SkippedFile>& left_out);

// Why there is no file or folder at `path`: "is a link to /store/a.png, which does not exist". Empty: nothing is there,
// not even a link.
std::string why_not_there(const std::string& path);

// For messages: "; left out 4, the first cat/a.png: is a link …"; empty for none.
std::string left_out_text(const std::vector<SkippedFile>& left_out);

// Changes when one of the files does.
std::string fingerprint_of(const std::vector<FoundFile>& files);

// ".txt" for "a/B.TXT"; "" for a name without an ending.
std::string lower_ending(const std::string& name);

// ".cif.gz 5, .pdb 20"; files for which ending_of returns "" are counted as "without an ending 3".
std::string counts_by_ending(const std::vector<FoundFile>& files,
                             const std::function<std::string(const std::string& name)>& ending_of);

}  // namespace lockstep
