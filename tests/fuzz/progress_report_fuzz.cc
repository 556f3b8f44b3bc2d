// Any bytes as a program's progress report: an error in words, or a report within its bounds.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "runner/agent/progress_report.h"
#include "runner/base/check.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace lockstep;
  const Result<ProgressReport> report = parse_progress_report({reinterpret_cast<const char*>(data), size});
  if (!report.ok()) {
    LOCKSTEP_CHECK(!report.error().message.empty(), "an error says why");
    return 0;
  }
  LOCKSTEP_CHECK(report->others.size() <= kReportedFiguresMax, "some figures");
  for (const auto& [name, value] : report->others) {
    LOCKSTEP_CHECK(!name.empty() && name.size() <= kReportedNameBytesMax, "short names");
    LOCKSTEP_CHECK(std::isfinite(value), "numbers are finite");
  }
  LOCKSTEP_CHECK(report->step.value_or(0) >= 0 && report->total_steps.value_or(0) >= 0, "counts are not negative");
  ProgressReport known = *report;
  update(known, *report);
  LOCKSTEP_CHECK(known.others == report->others, "the same again changes nothing");
  return 0;
}
