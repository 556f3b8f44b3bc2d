#include "tests/fake/http_server.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <charconv>
#include <csignal>
#include <list>
#include <thread>
#include <vector>

#include "runner/base/check.h"

namespace lockstep::fake {
namespace {

template <auto free_function>
struct Free {
  template <typename T>
  void operator()(T* object) const {
    free_function(object);
  }
};
using Bio = std::unique_ptr<BIO, Free<BIO_free>>;
using Certificate = std::unique_ptr<X509, Free<X509_free>>;
using Key = std::unique_ptr<EVP_PKEY, Free<EVP_PKEY_free>>;
using Context = std::unique_ptr<SSL_CTX, Free<SSL_CTX_free>>;
using Connection = std::unique_ptr<SSL, Free<SSL_free>>;

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; });
  return text;
}

Context make_context(const HttpServer::Options& options) {
  Context context(SSL_CTX_new(TLS_server_method()));
  const auto memory = [](const std::string& pem) {
    return Bio(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())));
  };
  const Bio certificates = memory(options.certificate.certificate_pem);
  const Certificate leaf(PEM_read_bio_X509(certificates.get(), nullptr, nullptr, nullptr));
  LOCKSTEP_CHECK(SSL_CTX_use_certificate(context.get(), leaf.get()) == 1, "the server's certificate is good");
  while (X509* chain = PEM_read_bio_X509(certificates.get(), nullptr, nullptr, nullptr)) {
    SSL_CTX_add0_chain_cert(context.get(), chain);
  }
  const Bio key_text = memory(options.certificate.key_pem);
  const Key key(PEM_read_bio_PrivateKey(key_text.get(), nullptr, nullptr, nullptr));
  LOCKSTEP_CHECK(SSL_CTX_use_PrivateKey(context.get(), key.get()) == 1, "the server's key is good");
  if (options.tls12_only) SSL_CTX_set_max_proto_version(context.get(), TLS1_2_VERSION);
  if (!options.client_authority_pem.empty()) {
    const Bio authority_text = memory(options.client_authority_pem);
    const Certificate authority(PEM_read_bio_X509(authority_text.get(), nullptr, nullptr, nullptr));
    X509_STORE_add_cert(SSL_CTX_get_cert_store(context.get()), authority.get());
    SSL_CTX_set_verify(context.get(), SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  }
  return context;
}

std::string common_name(const X509* certificate) {
  std::array<char, 256> name{};
  X509_NAME_get_text_by_NID(X509_get_subject_name(certificate), NID_commonName, name.data(),
                            static_cast<int>(name.size()));
  return name.data();
}

const char* reason_phrase(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 201:
      return "Created";
    case 404:
      return "Not Found";
    case 429:
      return "Too Many Requests";
    default:
      return "Status";
  }
}

// A descriptor, with TLS or without.
class Channel {
 public:
  Channel(int fd, SSL_CTX* context) : fd_(fd) {
    if (context == nullptr) return;
    ssl_.reset(SSL_new(context));
    SSL_set_fd(ssl_.get(), fd);
  }
  ~Channel() { ::close(fd_); }
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  bool handshake() { return !ssl_ || SSL_accept(ssl_.get()) == 1; }

  // Bytes read; 0 or less at the end.
  ssize_t read(char* data, size_t size) {
    if (ssl_) return SSL_read(ssl_.get(), data, static_cast<int>(size));
    return ::recv(fd_, data, size, 0);
  }
  bool write(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t n = ssl_ ? SSL_write(ssl_.get(), bytes.data(), static_cast<int>(bytes.size()))
                             : ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (n <= 0) return false;
      bytes.remove_prefix(static_cast<size_t>(n));
    }
    return true;
  }
  // Both directions, so that a blocked call of any thread returns. The descriptor stays ours.
  void shut() const { ::shutdown(fd_, SHUT_RDWR); }
  [[nodiscard]] int fd() const { return fd_; }
  [[nodiscard]] SSL* ssl() const { return ssl_.get(); }

 private:
  const int fd_;
  Connection ssl_;
};

// Requests of one connection, one after the other.
class RequestReader {
 public:
  explicit RequestReader(Channel& channel) : channel_(channel) {}

  bool next(Request& request) {
    std::string line;
    if (!read_line(line)) return false;
    const size_t first = line.find(' ');
    const size_t second = line.find(' ', first + 1);
    if (first == std::string::npos || second == std::string::npos) return false;
    request.method = line.substr(0, first);
    const std::string target = line.substr(first + 1, second - first - 1);
    const size_t question = target.find('?');
    request.path = target.substr(0, question);
    request.query = question == std::string::npos ? "" : target.substr(question + 1);
    request.headers.clear();
    while (read_line(line) && !line.empty()) {
      const size_t colon = line.find(':');
      if (colon == std::string::npos) return false;
      const size_t value = line.find_first_not_of(' ', colon + 1);
      request.headers[lower(line.substr(0, colon))] = value == std::string::npos ? "" : line.substr(value);
    }
    size_t length = 0;
    if (const auto header = request.headers.find("content-length"); header != request.headers.end()) {
      std::from_chars(header->second.data(), header->second.data() + header->second.size(), length);
    }
    while (buffer_.size() < length) {
      if (!read_more()) return false;
    }
    request.body = buffer_.substr(0, length);
    buffer_.erase(0, length);
    return true;
  }

 private:
  bool read_more() {
    std::array<char, 16384> chunk;  // NOLINT(cppcoreguidelines-pro-type-member-init): filled by read
    const ssize_t n = channel_.read(chunk.data(), chunk.size());
    if (n <= 0) return false;
    buffer_.append(chunk.data(), static_cast<size_t>(n));
    return true;
  }
  bool read_line(std::string& line) {
    while (buffer_.find("\r\n") == std::string::npos) {
      if (!read_more()) return false;
    }
    const size_t end = buffer_.find("\r\n");
    line = buffer_.substr(0, end);
    buffer_.erase(0, end + 2);
    return true;
  }

  Channel& channel_;
  std::string buffer_;
};

class ExchangeOverChannel final : public Exchange {
 public:
  ExchangeOverChannel(Channel& channel, int stop_fd, Request request)
      : channel_(channel), stop_fd_(stop_fd), request_(std::move(request)) {}

  [[nodiscard]] const Request& request() const override { return request_; }

  void answer(int status, std::string_view body, const std::map<std::string, std::string>& headers) override {
    std::string text = head(status, headers);
    text.append("Content-Length: ").append(std::to_string(body.size())).append("\r\n\r\n").append(body);
    raw(text);
  }
  void begin(int status, const std::map<std::string, std::string>& headers) override {
    raw(head(status, headers) + "Transfer-Encoding: chunked\r\n\r\n");
  }
  bool chunk(std::string_view bytes) override {
    std::array<char, 32> size{};
    const int length = std::snprintf(size.data(), size.size(), "%zx\r\n", bytes.size());
    std::string text(size.data(), static_cast<size_t>(length));
    return raw(text.append(bytes).append("\r\n"));
  }
  void end() override { raw("0\r\n\r\n"); }
  bool raw(std::string_view bytes) override { return !is_cut_ && channel_.write(bytes); }
  void cut() override {
    is_cut_ = true;
    channel_.shut();
  }

  bool wait_for_client_to_go() override {
    while (true) {
      std::array<pollfd, 2> events{pollfd{channel_.fd(), POLLIN | POLLRDHUP, 0}, pollfd{stop_fd_, POLLIN, 0}};
      if (::poll(events.data(), events.size(), -1) < 0) continue;
      if (events[1].revents != 0) return false;
      std::array<char, 4096> rest;  // NOLINT(cppcoreguidelines-pro-type-member-init): filled by read
      if (channel_.read(rest.data(), rest.size()) <= 0) return true;
    }
  }

  [[nodiscard]] bool is_cut() const { return is_cut_; }

 private:
  static std::string head(int status, const std::map<std::string, std::string>& headers) {
    std::string text = "HTTP/1.1 ";
    text.append(std::to_string(status)).append(" ").append(reason_phrase(status)).append("\r\n");
    text.append("Content-Type: application/json\r\n");
    for (const auto& [name, value] : headers) text.append(name).append(": ").append(value).append("\r\n");
    return text;
  }

  Channel& channel_;
  const int stop_fd_;
  const Request request_;
  bool is_cut_ = false;
};

}  // namespace

void Gate::open() {
  const std::lock_guard lock(mutex_);
  open_ = true;
  changed_.notify_all();
}

bool Gate::wait(std::chrono::milliseconds timeout) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, timeout, [this] { return open_; });
}

struct HttpServer::Impl {
  // One client. Its channel is there while its thread lives.
  struct Client {
    std::unique_ptr<Channel> channel;
    std::thread thread;
    bool idle = false;  // waits for a request
  };

  void accept_all() {
    while (true) {
      std::array<pollfd, 2> events{pollfd{listen_fd, POLLIN, 0}, pollfd{stop_fd, POLLIN, 0}};
      if (::poll(events.data(), events.size(), -1) < 0) continue;
      if (events[1].revents != 0) return;
      const int fd = ::accept4(listen_fd, nullptr, nullptr, SOCK_CLOEXEC);
      if (fd < 0) continue;
      const int on = 1;
      ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
      const std::lock_guard lock(mutex);
      Client& client = clients.emplace_back();
      client.channel = std::make_unique<Channel>(fd, context.get());
      const int number = ++connections;
      client.thread = std::thread([this, &client, number] { serve(client, number); });
    }
  }

  void set_idle(Client& client, bool idle) {
    const std::lock_guard lock(mutex);
    client.idle = idle;
  }

  void serve(Client& client, int number) {
    Channel& channel = *client.channel;
    Request request;
    request.connection = number;
    if (channel.handshake()) {
      if (SSL* ssl = channel.ssl()) {
        const Certificate peer(SSL_get1_peer_certificate(ssl));
        if (peer) request.client_name = common_name(peer.get());
        const char* name = SSL_get_servername(ssl, TLSEXT_NAMETYPE_host_name);
        if (name != nullptr) request.server_name = name;
      }
      RequestReader reader(channel);
      set_idle(client, true);
      while (reader.next(request)) {
        set_idle(client, false);
        ++requests;
        ExchangeOverChannel exchange(channel, stop_fd, request);
        handler(exchange);
        if (exchange.is_cut() || options.close_after_answer) break;
        set_idle(client, true);
      }
    }
    channel.shut();
  }

  Options options;
  Handler handler;
  int listen_fd = -1;
  int stop_fd = -1;
  uint16_t port = 0;
  std::thread accepting;
  std::atomic<int> connections{0};
  std::atomic<int> requests{0};
  std::mutex mutex;  // guards what follows
  Context context;
  std::list<Client> clients;
};

HttpServer::HttpServer(Options options, Handler handler) : impl_(std::make_unique<Impl>()) {
  std::signal(SIGPIPE, SIG_IGN);  // SSL_write knows no MSG_NOSIGNAL
  impl_->options = std::move(options);
  impl_->handler = std::move(handler);
  if (!impl_->options.certificate.certificate_pem.empty()) impl_->context = make_context(impl_->options);

  const bool ipv6 = impl_->options.address.find(':') != std::string::npos;
  impl_->listen_fd = ::socket(ipv6 ? AF_INET6 : AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  impl_->stop_fd = ::eventfd(0, EFD_CLOEXEC);
  int bound = -1;
  if (ipv6) {
    sockaddr_in6 address{};
    socklen_t size = sizeof(address);
    address.sin6_family = AF_INET6;
    ::inet_pton(AF_INET6, impl_->options.address.c_str(), &address.sin6_addr);
    bound = ::bind(impl_->listen_fd, reinterpret_cast<const sockaddr*>(&address), size);
    ::getsockname(impl_->listen_fd, reinterpret_cast<sockaddr*>(&address), &size);
    impl_->port = ntohs(address.sin6_port);
  } else {
    sockaddr_in address{};
    socklen_t size = sizeof(address);
    address.sin_family = AF_INET;
    ::inet_pton(AF_INET, impl_->options.address.c_str(), &address.sin_addr);
    bound = ::bind(impl_->listen_fd, reinterpret_cast<const sockaddr*>(&address), size);
    ::getsockname(impl_->listen_fd, reinterpret_cast<sockaddr*>(&address), &size);
    impl_->port = ntohs(address.sin_port);
  }
  LOCKSTEP_CHECK(bound == 0 && ::listen(impl_->listen_fd, 512) == 0, "the fake server listens");
  impl_->accepting = std::thread([this] { impl_->accept_all(); });
}

HttpServer::~HttpServer() {
  const uint64_t one = 1;
  LOCKSTEP_CHECK(::write(impl_->stop_fd, &one, sizeof(one)) == sizeof(one), "the fake server is told to stop");
  impl_->accepting.join();
  {
    const std::lock_guard lock(impl_->mutex);
    for (const Impl::Client& client : impl_->clients) client.channel->shut();
  }
  for (Impl::Client& client : impl_->clients) client.thread.join();
  ::close(impl_->listen_fd);
  ::close(impl_->stop_fd);
}

uint16_t HttpServer::port() const { return impl_->port; }

std::string HttpServer::url(const std::string& host) const {
  const std::string& address = host.empty() ? impl_->options.address : host;
  std::string url = impl_->options.certificate.certificate_pem.empty() ? "http://" : "https://";
  url.append(address.find(':') == std::string::npos ? address : "[" + address + "]");
  return url.append(":").append(std::to_string(impl_->port));
}

int HttpServer::connections() const { return impl_->connections; }
int HttpServer::requests() const { return impl_->requests; }

void HttpServer::set_certificate(CertificateAndKey certificate) {
  Options options = impl_->options;
  options.certificate = std::move(certificate);
  Context fresh = make_context(options);
  const std::lock_guard lock(impl_->mutex);
  impl_->context = std::move(fresh);  // connections hold the old one themselves
}

void HttpServer::close_idle_connections() {
  const std::lock_guard lock(impl_->mutex);
  for (const Impl::Client& client : impl_->clients) {
    if (client.idle) client.channel->shut();
  }
}

}  // namespace lockstep::fake
