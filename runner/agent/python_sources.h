// The Python files of this room as text. Pure.
#pragma once

namespace lockstep {

extern const char* const kZygoteSource;         // for python -c: rank_start.py and zygote.py
extern const char* const kDescribeSource;       // the same with program_level.py, to say what it would do
extern const char* const kSitecustomizeSource;  // sitecustomize.py: rank_start.py and sitecustomize_end.py
extern const char* const kReportSource;         // lockstep.py

}  // namespace lockstep
