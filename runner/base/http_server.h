// HttpServer: answers short requests, and stays responsive when clients misbehave.
//
// One request per connection; GET, HEAD and POST. A client's use of resources is bounded: kHttpRequestMax bytes of
// request line and headers (431), `body_max` bytes of body (413), kHttpRequestTime for a whole request and as much
// again for reading the answer, kHttpConnectionsMax connections. When all connections are in use, the oldest is closed
// for the next one: a request takes milliseconds, so this closes a connection that is held open without a request.
// Threads: one of its own, which calls the handler, so requests are handled one after the other; it blocks all signals.
// The destructor ends it at once.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "runner/base/result.h"

namespace lockstep {

inline constexpr size_t kHttpRequestMax = 8 * 1024;  // bytes, without the body
inline constexpr std::chrono::seconds kHttpRequestTime{10};
inline constexpr size_t kHttpConnectionsMax = 256;
// Connections younger than this are not closed for others, because their request may still be arriving.
inline constexpr std::chrono::milliseconds kHttpGraceTime{250};

struct HttpRequest {
  std::string method;  // "GET" or "POST". "GET" for HEAD, too: the server then sends the answer without its body
  std::string path;    // without "?…"; as it was sent, not percent-decoded
  std::string query;   // what follows the "?"; empty without one
  std::string authorization;
  std::string body;
};

// For HttpAnswer::type.
inline constexpr const char* kJsonType = "application/json";
inline constexpr const char* kTextType = "text/plain; charset=utf-8";
inline constexpr const char* kPrometheusType = "text/plain; version=0.0.4; charset=utf-8";

struct HttpAnswer {
  int code = 200;
  const char* type = "";
  std::string body;
  bool runs_no_scripts = false;  // for files that this program did not make: a browser must not run or load anything
};

class HttpServer {
 public:
  struct Options {
    int port = 0;              // 0: any free one
    bool is_loopback = false;  // only this machine reaches it, at 127.0.0.1
    size_t body_max = 0;       // bytes
    std::function<HttpAnswer(const HttpRequest&)> handler;
  };
  // Listens on all addresses, IPv4 and IPv6, or on 127.0.0.1. kConflict: the port is in use; kUnavailable: another
  // error of the system.
  static Result<std::unique_ptr<HttpServer>> start(Options options);
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  [[nodiscard]] int port() const;

 private:
  struct Impl;
  explicit HttpServer(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep
