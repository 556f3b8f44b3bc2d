#include "runner/agent/program_folder.h"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <utility>
#include <vector>

#include "runner/agent/python_sources.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

// Without an fsync: the folder is of no use after this process.
Status write_text(FileSystem& files, const std::string& folder, const std::string& name, std::string_view text) {
  const std::string path = join_path(folder, name);
  TRY_ASSIGN(const FileHandle handle, files.open_for_write(path));
  const OpenFile file(files, handle);
  const Status written = write_all(files, handle, text.data(), text.size());
  return written.ok() ? written : written.error().with_context(path);
}

}  // namespace

Result<ProgramFolder> ProgramFolder::make(FileSystem& files) {
  std::error_code error;
  fs::path temporary = fs::temp_directory_path(error);  // fails where TMPDIR is no folder
  if (error) temporary = "/tmp";
  std::string why;
  for (const fs::path& parent : {temporary, fs::path("/dev/shm")}) {
    std::string path = parent / "lockstep-XXXXXX";
    if (::mkdtemp(path.data()) == nullptr) {
      why += (why.empty() ? "" : "; ") + parent.string() + ": " + std::strerror(errno);
      continue;
    }
    ProgramFolder folder(path);
    const auto fill = [&]() -> Status {
      const std::string package = folder.package_folder() + "/lockstep";
      for (const std::string& inner : {folder.start_folder(), folder.package_folder(), package}) {
        TRY(files.make_directory(inner));
      }
      TRY(write_text(files, folder.start_folder(), "sitecustomize.py", kSitecustomizeSource));
      for (const PackageFile& file : python_package()) TRY(write_text(files, package, file.name, file.content));
      return {};
    };
    const Status written = fill();
    if (written.ok()) return folder;
    why += (why.empty() ? "" : "; ") + written.error().message;
  }
  return Error{ErrorCode::kUnavailable, "no folder for the ranks' files (" + why + "): set TMPDIR to one"};
}

ProgramFolder::~ProgramFolder() {
  std::error_code ignored;
  if (!path_.empty()) fs::remove_all(path_, ignored);
}

ProgramFolder::ProgramFolder(ProgramFolder&& other) noexcept : path_(std::exchange(other.path_, "")) {}

ProgramFolder& ProgramFolder::operator=(ProgramFolder&& other) noexcept {
  std::swap(path_, other.path_);
  return *this;
}

std::string ProgramFolder::error_file(int local_rank) const {
  return path_ + "/rank-" + std::to_string(local_rank) + ".json";
}

}  // namespace lockstep
