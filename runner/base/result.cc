#include "runner/base/result.h"

namespace lockstep {

const char* to_string(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalid:
      return "invalid";
    case ErrorCode::kNotFound:
      return "not found";
    case ErrorCode::kCorrupt:
      return "corrupt";
    case ErrorCode::kRetry:
      return "retry";
    case ErrorCode::kConflict:
      return "conflict";
    case ErrorCode::kExists:
      return "exists";
    case ErrorCode::kForbidden:
      return "forbidden";
    case ErrorCode::kGone:
      return "gone";
    case ErrorCode::kCancelled:
      return "cancelled";
    case ErrorCode::kUnavailable:
      return "unavailable";
  }
  return "unknown";
}

}  // namespace lockstep
