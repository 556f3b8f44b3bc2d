#include "runner/base/build_info.h"

namespace lockstep {

const char* build_version() { return LOCKSTEP_VERSION; }

}  // namespace lockstep
