// Whether a request is sent again, and when. Pure: the time and the random number are arguments.
#pragma once

#include <chrono>
#include <optional>

#include "operator/kube/http_transport.h"
#include "runner/base/result.h"

namespace lockstep::kube {

inline constexpr std::chrono::milliseconds kRetryFirst{100};
inline constexpr std::chrono::milliseconds kRetryMax{2'000};

struct RetryQuestion {
  bool idempotent = true;                  // may be sent twice without harm
  int attempts = 1;                        // so far
  std::chrono::milliseconds elapsed{0};    // since the first
  std::chrono::milliseconds retry_for{0};  // no attempt begins later than this
  double random = 0.0;                     // from [0, 1)
};

// How long to wait before the next attempt; nothing: give the answer to the caller.
//   429, 503 with Retry-After: the server did nothing; after that time, whatever the method.
//   429, 500, 502, 503, 504, 408 without it, and a connection that broke: only what is idempotent.
//   no connection at all (kReasonNotConnected): whatever the method.
//   kReasonTlsRefused, kCancelled, all others: no.
// Without Retry-After the wait doubles from kRetryFirst to kRetryMax, and is drawn from its upper half.
std::optional<std::chrono::milliseconds> wait_before_retry(const RetryQuestion& question,
                                                           const Result<HttpResponse>& outcome);

}  // namespace lockstep::kube
