// The web page at /. It polls /status, /history and /outputs, and loads no script or style from other servers.
#pragma once

#include <string_view>

namespace lockstep {

extern const std::string_view kStatusPage;

}  // namespace lockstep
