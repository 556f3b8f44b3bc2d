// The zygote's program (zygote.py) as text. Pure.
#pragma once

namespace lockstep {

extern const char* const kZygoteSource;

}  // namespace lockstep
