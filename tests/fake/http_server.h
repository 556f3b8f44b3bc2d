// HttpServer: an HTTP/1.1 server for tests that answers, fails and falls silent as it is told to.
//
// A handler is called for every request, on the thread of its connection, and does what a server may do with it:
// answer, answer in pieces, stop in the middle, close. Blocking sockets and OpenSSL; listens on a loopback address.
// Threads: one for accepting, one per connection, all joined by the destructor, which wakes whoever waits in an
// exchange. A handler must be safe to be called by several connections at once.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "tests/fake/certificates.h"

namespace lockstep::fake {

// A handler waits at it until the test opens it, or the other way round.
class Gate {
 public:
  void open();
  // False if `timeout` is up first.
  bool wait(std::chrono::milliseconds timeout = std::chrono::seconds(30));

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = false;
};

struct Request {
  std::string method;
  std::string path;
  std::string query;
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;
  int connection = 0;       // counts from 1
  std::string client_name;  // common name of the client's certificate
  std::string server_name;  // that the client asked for (SNI)
};

// One request and the way to answer it.
class Exchange {
 public:
  virtual ~Exchange() = default;
  [[nodiscard]] virtual const Request& request() const = 0;

  // A whole answer.
  virtual void answer(int status, std::string_view body, const std::map<std::string, std::string>& headers = {}) = 0;
  // An answer in chunks: `begin`, `chunk` as often as wanted, `end`. `chunk` says whether the client still takes them.
  virtual void begin(int status, const std::map<std::string, std::string>& headers = {}) = 0;
  virtual bool chunk(std::string_view bytes) = 0;
  virtual void end() = 0;
  // Sends these bytes as they are, without regard to HTTP.
  virtual bool raw(std::string_view bytes) = 0;
  // Closes the connection, whatever was sent.
  virtual void cut() = 0;

  // Waits until the client has closed the connection, or the server ends: true when it was the client.
  virtual bool wait_for_client_to_go() = 0;
};

class HttpServer {
 public:
  using Handler = std::function<void(Exchange&)>;
  struct Options {
    std::string address = "127.0.0.1";
    CertificateAndKey certificate;     // empty: http
    std::string client_authority_pem;  // not empty: a client certificate of this authority is required
    bool tls12_only = false;
    // Closes every connection after one answer, without saying so beforehand.
    bool close_after_answer = false;
  };
  HttpServer(Options options, Handler handler);
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  [[nodiscard]] uint16_t port() const;
  // "https://127.0.0.1:PORT"; with another name for the address, if wanted.
  [[nodiscard]] std::string url(const std::string& host = "") const;
  [[nodiscard]] int connections() const;  // so far
  [[nodiscard]] int requests() const;     // so far
  // From now on new connections show this certificate.
  void set_certificate(CertificateAndKey certificate);
  // Closes the connections that wait for their next request.
  void close_idle_connections();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep::fake
