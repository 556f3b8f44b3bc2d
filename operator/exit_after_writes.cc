#include "operator/exit_after_writes.h"

#include <unistd.h>

#include "runner/base/mutex.h"

namespace lockstep {
namespace {

bool is_counted(const kube::HttpRequest& request) {
  if (request.method == "GET") return false;
  const bool is_event = request.path.ends_with("/events") || request.path.find("/events/") != std::string::npos;
  const bool is_lease = request.path.ends_with("/leases") || request.path.find("/leases/") != std::string::npos;
  return !is_event && !is_lease;
}

}  // namespace

Result<kube::HttpResponse> ExitAfterWrites::send(const kube::HttpRequest& request) {
  if (!is_counted(request)) return inner_->send(request);
  const MutexLock lock(mutex_);
  Result<kube::HttpResponse> answer = inner_->send(request);
  if (answer.ok() && answer->status < 300 && ++answered_ == writes_) ::_exit(kExitAfterWritesCode);
  return answer;
}

int ExitAfterWrites::answered() const {
  const MutexLock lock(mutex_);
  return answered_;
}

// One after the other, so that "after the n-th" is the same state every time.
std::vector<Result<kube::HttpResponse>> ExitAfterWrites::send_all(std::span<const kube::HttpRequest> requests,
                                                                  size_t /*in_flight_max*/,
                                                                  const std::stop_token& stop) {
  std::vector<Result<kube::HttpResponse>> answers;
  answers.reserve(requests.size());
  for (const kube::HttpRequest& request : requests) {
    answers.push_back(stop.stop_requested() ? Error{ErrorCode::kCancelled, "stopped before it was sent"}
                                            : send(request));
  }
  return answers;
}

}  // namespace lockstep
