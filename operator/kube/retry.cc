#include "operator/kube/retry.h"

#include <algorithm>

#include "operator/kube/api_error.h"

namespace lockstep::kube {
namespace {

using std::chrono::milliseconds;

milliseconds backoff(int attempts, double random) {
  milliseconds full = kRetryFirst;
  for (int i = 1; i < attempts && full < kRetryMax; ++i) full *= 2;
  full = std::min(full, kRetryMax);
  return milliseconds(static_cast<int64_t>(static_cast<double>(full.count()) * (0.5 + random / 2)));
}

bool may_send_again(const RetryQuestion& question, const Result<HttpResponse>& outcome) {
  if (!outcome.ok()) {
    const Error& error = outcome.error();
    if (error.code != ErrorCode::kUnavailable || error.reason == kReasonTlsRefused) return false;
    return question.idempotent || error.reason == kReasonNotConnected;
  }
  const int status = outcome->status;
  if (code_of_status(status, "") != ErrorCode::kRetry) return false;
  const bool did_nothing = (status == 429 || status == 503) && retry_after_of(*outcome).has_value();
  return question.idempotent || did_nothing;
}

}  // namespace

std::optional<milliseconds> wait_before_retry(const RetryQuestion& question, const Result<HttpResponse>& outcome) {
  if (!may_send_again(question, outcome)) return std::nullopt;
  milliseconds wait = backoff(question.attempts, question.random);
  if (outcome.ok()) {
    // A random extra wait on top of the server's, so that not all clients come back at once.
    if (const auto asked = retry_after_of(*outcome)) {
      wait = *asked + milliseconds(static_cast<int64_t>(static_cast<double>(kRetryFirst.count()) * question.random));
    }
  }
  if (question.elapsed + wait > question.retry_for) return std::nullopt;
  return wait;
}

}  // namespace lockstep::kube
