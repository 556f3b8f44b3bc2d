// TextFolder: the text files of a folder, or of a zip archive that is given in its place ("ml-1m.zip").
//
// Role: data sets are published as archives of one folder; a reader that asks for "ratings.dat" need not know which of
// the two it has. Threads: immutable once opened; read() from any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "runner/base/result.h"
#include "runner/formats/open_text.h"
#include "runner/formats/zip_archive.h"

namespace lockstep {

// Is this a file that begins as a zip archive does?
bool is_zip_file(FileSystem& fs, const std::string& path);

class TextFolder {
 public:
  // `path`: a folder or a zip archive, which is read into memory. `fs` outlives it. Errors: kNotFound; kInvalid,
  // kCorrupt or kUnavailable, with the path and what is wrong.
  static Result<TextFolder> open(
      FileSystem& fs, const std::string& path, const std::function<void()>& on_progress = [] {});

  // The files' names, sorted; hidden ones are left out. Those of an archive are relative to the folder in it that holds
  // them all, those of a folder are the files in it, not below it.
  [[nodiscard]] std::vector<std::string> names() const;
  [[nodiscard]] bool has(const std::string& name) const;
  // For messages: "data/ml-1m/ratings.dat", "data/ml-1m.zip/ratings.dat".
  [[nodiscard]] std::string path_of(const std::string& name) const;
  // As open_text. Also kNotFound for a name that is not there; kCorrupt for a damaged archive.
  [[nodiscard]] Result<OpenedText> read(
      const std::string& name, uint64_t bytes_max, const std::function<void()>& on_progress = [] {}) const;

 private:
  explicit TextFolder(FileSystem& fs) : fs_(&fs) {}

  FileSystem* fs_;
  std::string path_;
  std::shared_ptr<const std::string> archive_;  // null: a folder
  std::map<std::string, std::string> entries_;  // of an archive: name → name of its zip entry
  std::map<std::string, ZipEntry> directory_;
};

}  // namespace lockstep
