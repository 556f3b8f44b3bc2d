// What stands as `lockstep` in the folder that brings the agent into an image which holds nothing of ours:
//
//   lockstep        this program, linked statically: it needs nothing of the image, whatever its C library is
//   bin/lockstep    the real one
//   lib/            the libraries that it needs
//   loader/lockstep the dynamic loader that they were linked for, so named that tools list the agent as `lockstep`
//
// `lockstep --copy_to FOLDER` copies the folder: what the init container of a TrainJob's pod does. Everything else
// starts bin/lockstep with that loader and those libraries. The image's LD_PRELOAD and LD_AUDIT name libraries for the
// image's own loader: they are kept from ours, and given back to the program that the agent starts (env::kKeptPrefix).
// After our own libraries those of LD_LIBRARY_PATH are found, because the driver's NVML may be there.
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "runner/contract/env_names.h"
#include "runner/contract/exit_code.h"

namespace {

namespace fs = std::filesystem;

constexpr std::string_view kLibraryPath = "LD_LIBRARY_PATH=";

std::vector<char*> pointers_to(std::vector<std::string>& words) {
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  return pointers;
}

int start(const fs::path& folder, int argc, char** argv, char** variables) {
  std::vector<std::string> environment;
  std::string libraries = folder / "lib";
  for (char** variable = variables; *variable != nullptr; ++variable) {
    const std::string_view text(*variable);
    const bool is_hidden = text.starts_with("LD_PRELOAD=") || text.starts_with("LD_AUDIT=");
    environment.push_back((is_hidden ? std::string(lockstep::env::kKeptPrefix) : std::string()).append(text));
    if (text.starts_with(kLibraryPath) && text.size() > kLibraryPath.size()) {
      libraries.append(":").append(text.substr(kLibraryPath.size()));
    }
  }
  std::vector<std::string> words{folder / "loader/lockstep", "--library-path", libraries, "--argv0", "lockstep",
                                 folder / "bin/lockstep"};
  words.insert(words.end(), argv + 1, argv + argc);
  ::execve(words.front().c_str(), pointers_to(words).data(), pointers_to(environment).data());
  std::fprintf(stderr, "lockstep: cannot run %s: %s\n", words.front().c_str(), std::strerror(errno));
  return lockstep::code_of(lockstep::ExitCode::kUsage);
}

}  // namespace

int main(int argc, char** argv, char** variables) {
  try {
    const fs::path folder = fs::read_symlink("/proc/self/exe").parent_path();
    if (argc != 3 || std::string_view(argv[1]) != "--copy_to") return start(folder, argc, argv, variables);
    fs::copy(folder, argv[2], fs::copy_options::recursive | fs::copy_options::overwrite_existing);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "lockstep: %s\n", error.what());
    return lockstep::code_of(lockstep::ExitCode::kUsage);
  }
}
