#include "runner/loop/stop_token.h"

#include <c10/util/Exception.h>

#include <cstddef>

#include "runner/contract/exit_code.h"

namespace lockstep {
namespace {

enum Request : size_t { kTerminates, kInterrupts, kLeaves, kRequests };

}  // namespace

void append_requests(const StepRequests& requests, std::vector<double>& numbers) {
  numbers.insert(numbers.end(), {requests.stop_code == code_of(ExitCode::kTerminated) ? 1.0 : 0.0,
                                 requests.stop_code == code_of(ExitCode::kInterrupted) ? 1.0 : 0.0,
                                 requests.leave_together ? 1.0 : 0.0});
}

StepRequests extract_requests(std::vector<double>& sums) {
  const std::vector<double> asked(sums.end() - kRequests, sums.end());
  sums.resize(sums.size() - kRequests);
  return {.stop_code = asked[kTerminates] > 0.0   ? code_of(ExitCode::kTerminated)
                       : asked[kInterrupts] > 0.0 ? code_of(ExitCode::kInterrupted)
                                                  : 0,
          .leave_together = asked[kLeaves] > 0.0};
}

void leave_group(const std::string& why) { throw c10::DistError({__func__, __FILE__, __LINE__}, why); }

}  // namespace lockstep
