#include "runner/link/map_beat_page.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>

#include "runner/contract/env_names.h"

namespace lockstep {
namespace {

Error unusable(int fd, const std::string& why) {
  return {ErrorCode::kInvalid, std::string(env::kBeatFd) + " is " + std::to_string(fd) + ", " + why};
}

}  // namespace

Result<BeatPage*> map_beat_page(int fd) {
  struct stat status {};
  const bool has_room = ::fstat(fd, &status) == 0 && status.st_size >= static_cast<off_t>(sizeof(BeatPage));
  void* const memory =
      has_room ? ::mmap(nullptr, sizeof(BeatPage), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) : MAP_FAILED;
  if (memory == MAP_FAILED) return unusable(fd, "which cannot be mapped as a beat page: it is set by the agent");
  auto* const page = static_cast<BeatPage*>(memory);
  if (page->magic != kBeatPageMagic || page->version != kBeatPageVersion) {
    const std::string why = page->magic == kBeatPageMagic
                                ? "the agent's beat page, which has version " + std::to_string(page->version) +
                                      ", and this program writes " + "version " + std::to_string(kBeatPageVersion) +
                                      ": use the one that has the agent's version"
                                : "which is no beat page: it is set by the agent";
    ::munmap(memory, sizeof(BeatPage));
    return unusable(fd, why);
  }
  ::close(fd);
  return page;
}

}  // namespace lockstep
