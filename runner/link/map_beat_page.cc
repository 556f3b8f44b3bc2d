#include "runner/link/map_beat_page.h"

#include <sys/mman.h>
#include <unistd.h>

#include <string>

#include "runner/contract/env_names.h"

namespace lockstep {

Result<BeatPage*> map_beat_page(int fd) {
  void* const memory = ::mmap(nullptr, sizeof(BeatPage), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (memory == MAP_FAILED) {
    std::string why(env::kBeatFd);
    why.append(" is ").append(std::to_string(fd)).append(", which cannot be mapped: it is set by the agent");
    return Error{ErrorCode::kInvalid, why};
  }
  ::close(fd);
  return static_cast<BeatPage*>(memory);
}

}  // namespace lockstep
