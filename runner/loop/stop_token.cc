#include "runner/loop/stop_token.h"

#include <c10/util/Exception.h>

namespace lockstep {

void leave_group(const std::string& why) { throw c10::DistError({__func__, __FILE__, __LINE__}, why); }

}  // namespace lockstep
