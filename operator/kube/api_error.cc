#include "operator/kube/api_error.h"

#include <algorithm>
#include <vector>

#include "runner/base/parse_number.h"

namespace lockstep::kube {
namespace {

constexpr std::chrono::seconds kRetryAfterMax = std::chrono::hours(1);
constexpr size_t kForeignBodyShownMax = 300;

bool is_status(const Json& body) { return body.is_object() && text_field(body, {"kind"}) == "Status"; }

bool names_a_field(const Json& status) {
  const Json& causes = list_field(status, {"details", "causes"});
  return std::any_of(causes.begin(), causes.end(),
                     [](const Json& cause) { return !text_field(cause, {"field"}).empty(); });
}

// Did the API server itself find the object invalid? Validation answers 422 and names the fields; decoding answers 400
// and names what it could not read. A ValidatingAdmissionPolicy also answers 422, but its cause has no field. A webhook
// may answer anything; the API server then begins the message with "admission webhook ".
bool is_invalid_object(const Json& status, int code, const std::string& message) {
  if (message.starts_with("admission webhook ")) return false;
  if (code == 400) return message.find(" cannot be handled as a ") != std::string::npos;
  return code == 422 && text_field(status, {"reason"}) == "Invalid" && names_a_field(status);
}

std::string reason_of(const Json& status, int code, const std::string& message) {
  for (const Json& cause : list_field(status, {"details", "causes"})) {
    if (text_field(cause, {"reason"}) == kReasonNamespaceTerminating) return std::string(kReasonNamespaceTerminating);
  }
  if (is_invalid_object(status, code, message)) return std::string(kReasonInvalidObject);
  const std::string reason = text_field(status, {"reason"});
  // These admission plugins answer Forbidden, as others do; only these words in their messages tell them apart.
  if (reason == "Forbidden" && message.find("exceeded quota") != std::string::npos) {
    return std::string(kReasonExceededQuota);
  }
  if (reason == "Forbidden" && message.find("no PriorityClass with name ") != std::string::npos) {
    return std::string(kReasonNoPriorityClass);
  }
  // "pods is forbidden: User "u" cannot create resource "pods" …"; and, where owner references are guarded,
  // "cannot set blockOwnerDeletion if an ownerReference refers to a resource you can't set finalizers on".
  const bool is_rbac = message.find(": User \"") != std::string::npos && message.find(" cannot ") != std::string::npos;
  if (reason == "Forbidden" && (is_rbac || message.find("ownerReference") != std::string::npos)) {
    return std::string(kReasonNoPermission);
  }
  return reason;
}

// Causes that the message leaves out: "spec.x: Required value".
std::string missing_causes(const Json& status, const std::string& message) {
  std::string text;
  for (const Json& cause : list_field(status, {"details", "causes"})) {
    const std::string field = text_field(cause, {"field"});
    const std::string why = text_field(cause, {"message"});
    if (field.empty() || message.find(field) != std::string::npos) continue;
    text.append(text.empty() ? "" : "; ").append(field).append(": ").append(why);
  }
  return text;
}

// The body of an answer that a proxy or load balancer gave in place of the API server, on one line.
std::string foreign_words(const std::string& body) {
  std::string words;
  for (const char c : body.substr(0, kForeignBodyShownMax)) {
    const bool blank = c == ' ' || c == '\n' || c == '\r' || c == '\t';
    if (!blank) {
      words += c;
    } else if (!words.empty() && words.back() != ' ') {
      words += ' ';
    }
  }
  if (body.size() > kForeignBodyShownMax) words += " …";
  return words;
}

}  // namespace

ErrorCode code_of_status(int http_status, std::string_view reason) {
  switch (http_status) {
    case 401:
    case 403:
      return ErrorCode::kForbidden;
    case 404:
      return ErrorCode::kNotFound;
    case 409:
      return reason == kReasonAlreadyExists ? ErrorCode::kExists : ErrorCode::kConflict;
    case 410:
      return ErrorCode::kGone;
    case 408:
    case 425:
    case 429:
      return ErrorCode::kRetry;
    default:
      return http_status >= 500 ? ErrorCode::kRetry : ErrorCode::kInvalid;
  }
}

Error error_of_status(const Json& status, int http_status) {
  const int code = static_cast<int>(number_field(status, {"code"}).value_or(http_status));
  std::string message = text_field(status, {"message"});
  const std::string reason = reason_of(status, code, message);
  if (message.empty()) message = reason.empty() ? "no reason was given" : reason;
  const std::string causes = missing_causes(status, message);
  if (!causes.empty()) message.append(" (").append(causes).append(")");
  return Error{code_of_status(code, text_field(status, {"reason"})), std::to_string(code).append(" ").append(message),
               reason};
}

Error error_of_answer(const HttpResponse& answer, const std::string& what) {
  const Result<Json> body = parse_json(answer.body, "the answer");
  if (body.ok() && is_status(*body)) return error_of_status(*body, answer.status).with_context(what);
  std::string message = what;
  message.append(": ").append(std::to_string(answer.status));
  const std::string words = foreign_words(answer.body);
  message.append(words.empty() ? " with an empty body" : " " + words);
  return Error{code_of_status(answer.status, ""), message, answer.status == 401 ? "Unauthorized" : ""};
}

std::optional<std::chrono::seconds> retry_after_of(const HttpResponse& answer) {
  std::optional<int64_t> seconds;
  if (const auto header = answer.headers.find("retry-after"); header != answer.headers.end()) {
    seconds = parse_number<int64_t>(header->second);
  }
  if (!seconds && answer.status >= 400) {
    const Result<Json> body = parse_json(answer.body, "the answer");
    if (body.ok() && is_status(*body)) seconds = number_field(*body, {"details", "retryAfterSeconds"});
  }
  if (!seconds || *seconds < 0) return std::nullopt;
  return std::min(std::chrono::seconds(*seconds), kRetryAfterMax);
}

}  // namespace lockstep::kube
