// HttpTransport: HTTP requests to one server; it knows nothing of Kubernetes. The interface that hides cpprestsdk.
//
// Threads: safe from all threads; calls block the caller, never a pool thread of the implementation. One transport is
// shared by all users of a server, since it holds the pool of connections.
// Errors: a status code of the server is no error here. kUnavailable: no connection, a broken one, a time-out, TLS that
// failed (the message says what of it: unknown authority, expired, wrong name, refused client certificate); its reason
// is kReasonNotConnected or kReasonTlsRefused (api_error.h) where that is known. kCorrupt with kReasonTooLarge: an
// answer that is too large. kCancelled after `shut_down` or when the stop token says so. kInvalid: a request that
// cannot be sent. A request may be sent twice, whatever its method: when the server closes an idle connection just as a
// request is sent on it, the request is sent again on a new one, although the server may have read the first. So
// callers that create objects give them names: the second request is then answered with AlreadyExists.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "runner/base/result.h"

namespace lockstep::kube {

struct HttpRequest {
  std::string method = "GET";
  std::string path;   // begins with '/', percent-encoded
  std::string query;  // without '?', percent-encoded
  std::map<std::string, std::string> headers;
  std::string body;
  std::chrono::milliseconds timeout{30'000};  // of the whole exchange; for a stream: between two arrivals of bytes
};

struct HttpResponse {
  int status = 0;
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;
  std::chrono::microseconds duration{0};  // from the request to the end of the answer; of a stream: to its headers
};

class HttpTransport {
 public:
  virtual ~HttpTransport() = default;

  virtual Result<HttpResponse> send(const HttpRequest& request) = 0;

  // Answers in the order of the requests, at most `in_flight_max` of which are under way at a time. After a stop is
  // requested on `stop`, no request is begun: those not yet sent are kCancelled, and those under way are waited for.
  virtual std::vector<Result<HttpResponse>> send_all(std::span<const HttpRequest> requests, size_t in_flight_max,
                                                     const std::stop_token& stop) = 0;

  // Calls `on_bytes` on the caller's thread with each part of a 2xx answer's body as it arrives; it returns false to
  // end the stream. The response holds status and headers, and the body when the status is not 2xx. After the headers
  // of a 2xx answer every end of the stream (by the server, a broken connection, the time-out) returns ok. While
  // `on_bytes` has not returned, at most a small buffer is read from the server.
  virtual Result<HttpResponse> stream(const HttpRequest& request, const std::function<bool(std::string_view)>& on_bytes,
                                      const std::stop_token& stop) = 0;

  // Ends what is under way and refuses what comes after, with kCancelled. For the end of the process.
  virtual void shut_down() = 0;
};

}  // namespace lockstep::kube
