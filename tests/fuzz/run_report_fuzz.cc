// Any bytes as an agent's /status: an error in words, or a report within its bounds.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>

#include "operator/train/run_report.h"
#include "runner/base/check.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace lockstep;
  constexpr int kNodes = 3;
  const Result<train::RunReport> report =
      train::parse_run_report(std::string(reinterpret_cast<const char*>(data), size), kNodes);
  if (!report.ok()) {
    LOCKSTEP_CHECK(!report.error().message.empty(), "an error says why");
    return 0;
  }
  LOCKSTEP_CHECK(report->agents.size() <= kNodes, "not more agents than the job can have");
  LOCKSTEP_CHECK(report->failures.size() <= 10, "ten failures");
  LOCKSTEP_CHECK(report->metrics.size() <= train::kReportedMetricsMax, "some metrics");
  LOCKSTEP_CHECK(report->reason.size() <= 1030, "texts are cut");
  LOCKSTEP_CHECK(report->process_restarts >= 0, "counts are not negative");
  if (report->loading) LOCKSTEP_CHECK(std::isfinite(report->loading->seconds_unchanged), "numbers are finite");
  return 0;
}
