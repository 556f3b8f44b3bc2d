#include "runner/base/check.h"

#include <cstdio>
#include <cstdlib>

namespace lockstep {

void check_failed(const char* file, int line, const char* condition, const char* message) {
  std::fprintf(stderr, "%s:%d: check failed: %s: %s\n", file, line, condition, message);
  std::fflush(stderr);
  std::abort();
}

}  // namespace lockstep
