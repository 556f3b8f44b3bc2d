#include "runner/agent/program_folder.h"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <utility>
#include <vector>

#include "runner/agent/python_sources.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

bool write_text(const fs::path& path, const char* text) {
  std::error_code ignored;
  fs::create_directories(path.parent_path(), ignored);
  std::ofstream file(path);
  file << text;
  file.close();
  return file.good();
}

}  // namespace

Result<ProgramFolder> ProgramFolder::make() {
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
    if (write_text(folder.start_folder() + "/sitecustomize.py", kSitecustomizeSource) &&
        write_text(folder.report_folder() + "/lockstep.py", kReportSource)) {
      return folder;
    }
    why += (why.empty() ? "" : "; ") + parent.string() + ": " + std::strerror(errno);
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
