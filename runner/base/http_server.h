// HttpServer: answers short requests, and goes on answering whatever else is done to its port.
//
// One request a connection; GET, HEAD and POST. What a peer may cost is bounded: kHttpRequestMax bytes of line and
// headers (431), `body_max` of body (413), kHttpRequestTime for a whole request and as much for reading the answer,
// kHttpConnectionsMax connections. When all of these are in use, the oldest one makes room for the next: a request
// takes milliseconds, so that who loses is he who holds a connection without asking.
// Threads: one of its own, which calls the handler, so that never two requests are answered at once; it takes no
// signals. The destructor ends it at once.
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
// Younger ones are not made to leave: their request may be on its way.
inline constexpr std::chrono::milliseconds kHttpGraceTime{250};

struct HttpRequest {
  std::string method;  // "GET", for HEAD too: the server leaves the body out; "POST"
  std::string path;    // without "?…"; as it was sent, nothing decoded
  std::string query;   // what follows the "?"; empty without one
  std::string authorization;
  std::string body;
};

struct HttpAnswer {
  int code = 200;
  const char* type = "";
  std::string body;
  bool runs_no_scripts = false;  // a browser that opens it runs nothing of it and loads nothing for it: somebody's file
};

class HttpServer {
 public:
  struct Options {
    int port = 0;         // 0: any free one
    size_t body_max = 0;  // bytes
    std::function<HttpAnswer(const HttpRequest&)> handler;
  };
  // Listens on all addresses, IPv4 and IPv6. kUnavailable: it cannot, with the system's reason; kConflict: the port is
  // in use.
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
