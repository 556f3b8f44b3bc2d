// What the API server's refusals mean: metav1.Status → Error. Pure.
//
// Codes: see client.h. `reason` is the most precise word that the answer holds: a cause that callers act on
// (kReasonNamespaceTerminating, kReasonExceededQuota, kReasonNoPriorityClass, kReasonNoPermission,
// kReasonInvalidObject), else metav1.Status.reason, else "".
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>

#include "operator/kube/http_transport.h"
#include "runner/base/json.h"
#include "runner/base/result.h"

namespace lockstep::kube {

inline constexpr std::string_view kReasonAlreadyExists = "AlreadyExists";
inline constexpr std::string_view kReasonNamespaceTerminating = "NamespaceTerminating";
inline constexpr std::string_view kReasonExceededQuota = "ExceededQuota";      // ours: the API has no reason for it
inline constexpr std::string_view kReasonNoPriorityClass = "NoPriorityClass";  // likewise
// Likewise: it is the caller who may not do this (RBAC), whatever the object says.
inline constexpr std::string_view kReasonNoPermission = "NoPermission";
// Ours: the API server itself found the object invalid and names the field, so sending it again is useless. Refusals by
// admission (webhooks, policies; any code of 4xx) never get this reason: a policy may accept the object later.
inline constexpr std::string_view kReasonInvalidObject = "InvalidObject";

// The server cannot have acted: there was no connection, or it broke before the whole request was written. Even a
// request that is not idempotent may be sent again. Set by the transport.
inline constexpr std::string_view kReasonNotConnected = "NotConnected";
// TLS was refused, by us or by the server: a person must act, waiting does not help. Set by the transport.
inline constexpr std::string_view kReasonTlsRefused = "TlsRefused";

// The answer has more bytes than the transport takes. Set by the transport, with kCorrupt.
inline constexpr std::string_view kReasonTooLarge = "TooLarge";

ErrorCode code_of_status(int http_status, std::string_view reason);

// `status`: a metav1.Status; `http_status` stands in where it has no code of its own.
Error error_of_status(const Json& status, int http_status);

// The error of an answer that is not 2xx. `what`: the request, "create pods team-a/x-0-0".
Error error_of_answer(const HttpResponse& answer, const std::string& what);

// How long the server asks to wait: the header Retry-After in seconds, else details.retryAfterSeconds of a
// metav1.Status. At most an hour.
std::optional<std::chrono::seconds> retry_after_of(const HttpResponse& answer);

}  // namespace lockstep::kube
