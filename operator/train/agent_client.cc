#include "operator/train/agent_client.h"

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <optional>
#include <utility>

#include "runner/base/json.h"

namespace lockstep::train {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using beast::error_code;

constexpr int kHttp11 = 11;

std::string where(const std::string& ip, int port, std::string_view path) {
  std::string text = "http://";
  text.append(ip.find(':') == std::string::npos ? ip : "[" + ip + "]").append(":").append(std::to_string(port));
  return text.append(path);
}

// One HTTP exchange, on the caller's thread. kAgentTimeout is for all of it together.
class Exchange {
 public:
  Exchange(std::string ip, int port, http::request<http::string_body> request)
      : ip_(std::move(ip)), port_(port), request_(std::move(request)), stream_(loop_) {
    response_.body_limit(kAgentBodyMax);
  }

  Result<http::response<http::string_body>> run() {
    error_code error;
    const asio::ip::address address = asio::ip::make_address(ip_, error);
    if (error) return invalid("\"" + ip_ + "\" is no IP address");
    stream_.expires_after(kAgentTimeout);
    stream_.async_connect(asio::ip::tcp::endpoint(address, static_cast<uint16_t>(port_)), [this](error_code e) {
      if (failed(e)) return;
      http::async_write(stream_, request_, [this](error_code sent, size_t) {
        if (failed(sent)) return;
        http::async_read(stream_, buffer_, response_, [this](error_code read, size_t) { failed(read); });
      });
    });
    loop_.run();
    if (error_ == http::error::body_limit) {
      return Error{ErrorCode::kCorrupt,
                   where(ip_, port_, to_view(request_.target())) + ": the answer has more than " +
                       std::to_string(kAgentBodyMax >> 20) +
                       " MiB; an agent's summary is shorter: use an image of this version of lockstep"};
    }
    if (error_) {
      const bool is_garbage = error_.category() == http::make_error_code(http::error::bad_version).category();
      return Error{is_garbage ? ErrorCode::kCorrupt : ErrorCode::kUnavailable,
                   where(ip_, port_, to_view(request_.target())) + ": " + error_.message()};
    }
    return response_.release();
  }

 private:
  static std::string_view to_view(beast::string_view text) { return {text.data(), text.size()}; }

  bool failed(error_code error) {
    if (error) error_ = error;
    return static_cast<bool>(error);
  }

  const std::string ip_;
  const int port_;
  http::request<http::string_body> request_;
  asio::io_context loop_;
  beast::tcp_stream stream_;
  beast::flat_buffer buffer_;
  http::response_parser<http::string_body> response_;
  error_code error_;
};

Result<std::string> exchange(const std::string& ip, int port, http::request<http::string_body> request) {
  request.set(http::field::host, ip);
  request.set(http::field::user_agent, "lockstep-operator");
  request.keep_alive(false);
  request.prepare_payload();
  const std::string target(request.target());
  TRY_ASSIGN(http::response<http::string_body> answer, Exchange(ip, port, std::move(request)).run());
  if (answer.result_int() / 100 != 2) {
    return Error{ErrorCode::kRetry, where(ip, port, target) + " answers " + std::to_string(answer.result_int()) + ": " +
                                        answer.body().substr(0, 200)};
  }
  return std::move(answer.body());
}

Status post(const std::string& ip, int port, const std::string& token, const char* path, const Json& body) {
  http::request<http::string_body> request{http::verb::post, path, kHttp11};
  request.set(http::field::authorization, "Bearer " + token);
  request.set(http::field::content_type, "application/json");
  request.body() = dump_line(body);
  TRY(exchange(ip, port, std::move(request)));
  return {};
}

}  // namespace

Result<std::string> read_agent_status(const std::string& ip, int port) {
  return exchange(ip, port, {http::verb::get, "/status?view=summary", kHttp11});
}

Status send_num_nodes(const std::string& ip, int port, const std::string& token, int num_nodes) {
  return post(ip, port, token, "/nodes", {{"nodes", num_nodes}});
}

Status send_coordinator_address(const std::string& ip, int port, const std::string& token, const std::string& address) {
  return post(ip, port, token, "/coordinator", {{"address", address}});
}

}  // namespace lockstep::train
