// HttpTransport: HTTP requests to one server; it knows nothing of Kubernetes. The interface that hides cpprestsdk.
//
// Threads: safe from all threads; calls block the caller, never a pool thread of the implementation. One transport is
// shared by all users of a server, since it holds the pool of connections.
// Errors: a status code of the server is no error here. kUnavailable: no connection, a broken one, a time-out, TLS that
// failed (the message says what of it: unknown authority, expired, wrong name, refused client certificate); its reason
// is kReasonNotConnected or kReasonTlsRefused (api_error.h) where that is known. kCorrupt: an answer that is too large.
// kCancelled after `shut_down` or when the stop token says so. kInvalid: a request that cannot be sent.
// Sent twice: a request may be sent again on a new connection, whatever its method, when the server has closed the old
// one while it lay unused (the server may have read it all the same). Callers that create objects therefore name them:
// the second request is answered with AlreadyExists.
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

  // Answers in the order of the requests, at most `in_flight_max` of which are under way at a time. Once `stop` says so
  // none is begun: those that were not are kCancelled, and those under way are waited for.
  virtual std::vector<Result<HttpResponse>> send_all(std::span<const HttpRequest> requests, size_t in_flight_max,
                                                     const std::stop_token& stop) = 0;

  // Hands over what arrives of a 2xx answer's body, as soon as it arrives; `on_bytes` runs on the caller's thread and
  // returns false to end the stream. The response holds status and headers, and the body when the status is not 2xx.
  // The end of the stream, clean or broken or by the time-out, is an ordinary return once the headers of a 2xx answer
  // were there. While `on_bytes` does not return, no more is read from the server than a small buffer holds.
  virtual Result<HttpResponse> stream(const HttpRequest& request, const std::function<bool(std::string_view)>& on_bytes,
                                      const std::stop_token& stop) = 0;

  // Ends what is under way and refuses what comes after, with kCancelled. For the end of the process.
  virtual void shut_down() = 0;
};

}  // namespace lockstep::kube
