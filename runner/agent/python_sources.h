// The Python files of this room as text, and the package `lockstep`. Pure.
#pragma once

#include <string_view>
#include <vector>

namespace lockstep {

extern const char* const kZygoteSource;         // for python -c: rank_start.py and zygote.py
extern const char* const kDescribeSource;       // the same with program_level.py, to say what it would do
extern const char* const kSitecustomizeSource;  // sitecustomize.py: rank_start.py and sitecustomize_end.py

struct PackageFile {
  const char* name;  // below the package's folder
  std::string_view content;
};
std::vector<PackageFile> python_package();

}  // namespace lockstep
