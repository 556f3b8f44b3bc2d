// Formats the result of `lockstep doctor`. Pure.
#pragma once

#include <string>
#include <vector>

#include "runner/doctor/checks.h"

namespace lockstep::doctor {

struct ReportStyle {
  bool color = false;
  int columns = 100;  // longer lines are broken between words
};

// A table by groups, without the checks that were skipped, and a last line that says what to do next.
std::string report_text(const std::vector<Check>& checks, const Facts& facts, ReportStyle style);

// One object: version, host, ok, counts and all checks.
std::string report_json(const std::vector<Check>& checks, const Facts& facts);

// 0, or 1 when a check failed.
int exit_code_of(const std::vector<Check>& checks);

}  // namespace lockstep::doctor
