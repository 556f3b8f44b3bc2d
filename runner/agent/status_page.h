// The page at /: self-contained, polls /status, /history and /outputs. No script or style from elsewhere.
#pragma once

#include <string_view>

namespace lockstep {

extern const std::string_view kStatusPage;

}  // namespace lockstep
