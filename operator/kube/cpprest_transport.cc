#include "operator/kube/cpprest_transport.h"

#include <cpprest/http_client.h>
#include <cpprest/producerconsumerstream.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <pplx/threadpool.h>

#include <algorithm>
#include <cerrno>
#include <deque>
#include <future>
#include <map>
#include <optional>
#include <set>
#include <system_error>

#include "operator/kube/api_error.h"
#include "operator/kube/server_url.h"
#include "operator/kube/tls_setup.h"
#include "runner/base/mutex.h"

namespace lockstep::kube {
namespace {

using Clock = std::chrono::steady_clock;
namespace http = web::http;
namespace streams = concurrency::streams;

// cpprestsdk closes the socket of a cancelled request on the thread that cancels, while another may be inside of an
// operation on it. With one thread, on which we cancel, too, there is no race. One is enough: it moves bytes and does
// TLS; the callers parse JSON. Nothing that runs on this thread may block.
constexpr size_t kPoolThreads = 1;

// The library has one inactivity timeout for all requests of a client, and 0 does not switch it off. The callers keep
// the deadlines of their requests themselves; the library's timeout must never end one first.
constexpr std::chrono::hours kLibraryTimeout{24};

// While a stream holds more than this that its caller has not taken, nothing is read from the socket.
constexpr size_t kStreamBufferBytesMax = size_t{1} << 20;

boost::asio::io_service& pool() {
  static const bool started = [] {
    pplx::get_ambient_scheduler();  // made here, by one thread: the library makes it at the first request
    try {
      crossplat::threadpool::initialize_with_threads(kPoolThreads);  // 40 threads otherwise
    } catch (const std::exception&) {
      return false;  // the pool was initialised before
    }
    return true;
  }();
  static_cast<void>(started);
  return crossplat::threadpool::shared_instance().service();
}

// Waits until the pool has run what cancelled requests have posted to it, and what that has posted in turn: at the end
// of the process the pool drops what is left, with its memory.
void run_what_is_posted() {
  constexpr int kRounds = 3;  // the cancellation, the continuations of the request, those of its body
  for (int round = 0; round < kRounds; ++round) {
    const auto reached = std::make_shared<std::promise<void>>();
    std::future<void> is_reached = reached->get_future();
    pool().post([reached] { reached->set_value(); });
    if (is_reached.wait_for(std::chrono::seconds(1)) != std::future_status::ready) return;
  }
}

// One request and its answer, between the pool's thread, which fills it in, and the caller, who waits for it.
class Exchange {
 public:
  // `on_end` is called at the end and when it is cancelled, on whatever thread that happens.
  Exchange(std::shared_ptr<http::client::http_client> client, bool streaming, size_t body_bytes_max,
           std::function<void()> on_end)
      : client_(std::move(client)),
        streaming_(streaming),
        body_bytes_max_(body_bytes_max),
        on_end_(std::move(on_end)) {}

  // --- the pool's thread ---

  // Takes bytes of the body; the task ends when there is room for more. It never fails: after a failure the library
  // would close the stream and wait for that on its own thread.
  pplx::task<size_t> receive(const uint8_t* bytes, size_t count) {
    MutexLock lock(mutex_);
    // Discarded: the caller has left and cancelled the request, or the body is too large.
    if (abandoned_ || too_large_) return pplx::task_from_result(count);
    if (!streaming_ && arrived_.size() + count > body_bytes_max_) {
      too_large_ = true;
      lock.unlock();
      changed();
      return pplx::task_from_result(count);
    }
    arrived_.append(reinterpret_cast<const char*>(bytes), count);
    last_arrival_ = Clock::now();
    const bool full = streaming_ && arrived_.size() > kStreamBufferBytesMax;
    pplx::task_completion_event<size_t> room;
    if (full) room_ = {room, count};
    lock.unlock();
    changed();
    return full ? pplx::create_task(room) : pplx::task_from_result(count);
  }

  void handle_head(const http::http_response& response) {
    HttpResponse head;
    head.status = response.status_code();
    for (const auto& [name, value] : response.headers()) {
      std::string lower = name;
      std::transform(lower.begin(), lower.end(), lower.begin(),
                     [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; });
      head.headers[lower] = value;
    }
    {
      const MutexLock lock(mutex_);
      head_ = std::move(head);
      last_arrival_ = head_at_ = Clock::now();
    }
    changed();
  }

  void handle_end(std::optional<Error> error) {
    {
      const MutexLock lock(mutex_);
      if (ended_) return;
      ended_ = true;
      ended_at_ = Clock::now();
      error_ = std::move(error);
    }
    changed();
    if (on_end_) on_end_();
  }

  // --- the caller ---

  enum class Wake { kNews, kDeadline, kCancelled };

  // Waits for the head, for bytes, or for the end; `since_arrival` counts the time from the last news.
  Wake wait(Clock::duration timeout, bool since_arrival) {
    MutexLock lock(mutex_);
    while (true) {
      if (cancelled_) return Wake::kCancelled;
      const bool news = ended_ || too_large_ || (streaming_ && head_ && (!arrived_.empty() || !head_seen_));
      if (news) {
        head_seen_ = head_.has_value();
        return Wake::kNews;
      }
      const Clock::time_point deadline = (since_arrival ? last_arrival_ : began_at_) + timeout;
      if (Clock::now() >= deadline) return Wake::kDeadline;
      changed_.wait_until(lock, deadline);
    }
  }

  // What has come since the last call; makes room for more.
  std::string drain() {
    std::string bytes;
    std::optional<Room> room;
    {
      const MutexLock lock(mutex_);
      bytes.swap(arrived_);
      room.swap(room_);
    }
    if (room) room->event.set(room->count);
    return bytes;
  }

  // The caller leaves: discards the body, lets a write that waits for room go on, and cancels the request.
  void abandon() {
    std::optional<Room> room;
    pplx::cancellation_token_source source;
    {
      const MutexLock lock(mutex_);
      abandoned_ = true;
      arrived_.clear();
      room.swap(room_);
      if (ended_) return;
      source = cancel_;
    }
    pool().post([source] { source.cancel(); });
    if (room) room->event.set(room->count);
  }

  // From any thread: `wait` returns.
  void cancel() {
    {
      const MutexLock lock(mutex_);
      cancelled_ = true;
    }
    changed();
    if (on_end_) on_end_();
  }

  [[nodiscard]] pplx::cancellation_token token() const { return cancel_.get_token(); }
  [[nodiscard]] Clock::time_point began_at() const { return began_at_; }
  [[nodiscard]] const std::shared_ptr<http::client::http_client>& client() const { return client_; }

  struct State {
    std::optional<HttpResponse> head;
    bool ended = false;
    bool cancelled = false;
    bool too_large = false;
    std::optional<Error> error;
  };
  [[nodiscard]] State state() const {
    const MutexLock lock(mutex_);
    State now{head_, ended_, cancelled_, too_large_, error_};
    if (now.head) {
      const Clock::time_point end = streaming_ || !ended_ ? head_at_ : ended_at_;
      now.head->duration = std::chrono::duration_cast<std::chrono::microseconds>(end - began_at_);
    }
    return now;
  }

 private:
  struct Room {
    pplx::task_completion_event<size_t> event;
    size_t count;
  };

  void changed() { changed_.notify_all(); }

  const std::shared_ptr<http::client::http_client> client_;  // the one that carries it
  const bool streaming_;
  const size_t body_bytes_max_;
  const std::function<void()> on_end_;
  const Clock::time_point began_at_ = Clock::now();
  const pplx::cancellation_token_source cancel_;
  mutable Mutex mutex_;
  ConditionVariable changed_;
  std::optional<HttpResponse> head_ GUARDED_BY(mutex_);
  bool head_seen_ GUARDED_BY(mutex_) = false;  // by the caller
  std::string arrived_ GUARDED_BY(mutex_);     // of the body, not yet taken
  std::optional<Room> room_ GUARDED_BY(mutex_);
  bool ended_ GUARDED_BY(mutex_) = false;
  bool cancelled_ GUARDED_BY(mutex_) = false;
  bool abandoned_ GUARDED_BY(mutex_) = false;
  bool too_large_ GUARDED_BY(mutex_) = false;
  std::optional<Error> error_ GUARDED_BY(mutex_);
  Clock::time_point last_arrival_ GUARDED_BY(mutex_) = began_at_;
  Clock::time_point head_at_ GUARDED_BY(mutex_) = began_at_;
  Clock::time_point ended_at_ GUARDED_BY(mutex_) = began_at_;
};

// The stream that the library writes a body to. The library's own buffer is unbounded: it reads on from the socket
// while nobody empties the buffer. A write to this one ends when there is room, and the library waits for that.
class BodySink final : public streams::details::basic_producer_consumer_buffer<uint8_t> {
 public:
  explicit BodySink(std::shared_ptr<Exchange> exchange)
      : basic_producer_consumer_buffer(0), exchange_(std::move(exchange)) {}

 protected:
  pplx::task<size_t> _putn(const uint8_t* bytes, size_t count) override { return exchange_->receive(bytes, count); }
  pplx::task<size_t> _putn(const uint8_t* bytes, size_t count, bool /*copy*/) override {
    return exchange_->receive(bytes, count);
  }

 private:
  std::shared_ptr<Exchange> exchange_;
};

class BodyBuffer final : public streams::streambuf<uint8_t> {
 public:
  explicit BodyBuffer(std::shared_ptr<Exchange> exchange)
      : streambuf(std::make_shared<BodySink>(std::move(exchange))) {}
};

// --- What went wrong, in words ---

bool is_tls_refusal(int code) {
  const auto packed = static_cast<unsigned long>(code);
  if (code <= 0 || ERR_GET_LIB(packed) != ERR_LIB_SSL) return false;
  const int reason = ERR_GET_REASON(packed);
  return reason == SSL_R_CERTIFICATE_VERIFY_FAILED || reason >= SSL_AD_REASON_OFFSET;  // ours, or an alert of theirs
}

// The library passes on the number of an error without its category: OpenSSL's or errno's.
std::string code_text(int code) {
  const auto packed = static_cast<unsigned long>(code);
  if (code > 0 && ERR_GET_LIB(packed) == ERR_LIB_SSL) {
    const char* reason = ERR_reason_error_string(packed);
    return reason == nullptr ? "TLS error " + std::to_string(code) : "TLS: " + std::string(reason);
  }
  if (code == boost::asio::error::eof || code == 1)
    return "the server closed the connection";  // 1: in the middle of TLS
  return std::generic_category().message(code);
}

Error explain(const http::http_exception& exception, const std::string& server, const TlsSetup* tls) {
  const int code = exception.error_code().value();
  const std::string_view what = exception.what();
  const auto unavailable = [&](const std::string& why, std::string_view reason) {
    return Error{ErrorCode::kUnavailable, server + ": " + why, std::string(reason)};
  };
  const std::string refusal = tls != nullptr && is_tls_refusal(code) ? tls->last_refusal() : "";
  if (!refusal.empty()) return unavailable("TLS: " + refusal, kReasonTlsRefused);
  if (what.find("resolv") != std::string_view::npos && what.find("connect") == std::string_view::npos) {
    return unavailable("its name cannot be resolved", kReasonNotConnected);
  }
  if (what.find("Failed to connect") != std::string_view::npos) {
    // The library makes one code of "refused" and "unreachable".
    const bool refused = code == EHOSTUNREACH;
    return unavailable("cannot connect: " + (refused ? "connection refused, or host unreachable" : code_text(code)),
                       kReasonNotConnected);
  }
  if (what.find("SSL handshake") != std::string_view::npos) {
    return unavailable("the TLS handshake failed: " + code_text(code), kReasonNotConnected);
  }
  // If the server has closed a connection while it was unused in the pool, a request with a body fails only here;
  // the library sends such a request again by itself only when the writing went well.
  const bool written = what.find("Failed to write") == std::string_view::npos;
  return unavailable("the connection broke: " + code_text(code) + " (" + std::string(what) + ")",
                     written ? "" : kReasonNotConnected);
}

std::string seconds_text(std::chrono::milliseconds time) {
  std::string text = std::to_string(time.count() / 1000);
  if (time.count() % 1000 != 0) text.append(".").append(std::to_string(1000 + time.count() % 1000).substr(1));
  return text + " s";
}

class CpprestTransport final : public HttpTransport {
 public:
  CpprestTransport(ServerUrl url, std::shared_ptr<TlsSetup> tls, const CpprestTransportOptions& options)
      : url_(std::move(url)),
        server_((url_.https ? "https://" : "http://") + url_.authority()),
        tls_(std::move(tls)),
        body_bytes_max_(options.body_bytes_max),
        poll_files_every_(options.poll_files_every),
        poll_files_at_(Clock::now() + options.poll_files_every),
        client_(make_client()) {}
  ~CpprestTransport() override {
    close();
    run_what_is_posted();
  }

  Result<HttpResponse> send(const HttpRequest& request) override {
    TRY_ASSIGN(const Call call, begin(request, false, {}));
    const Exchange::Wake wake = call->wait(request.timeout, false);
    return answer(call, request, wake);
  }

  std::vector<Result<HttpResponse>> send_all(std::span<const HttpRequest> requests, size_t in_flight_max,
                                             const std::stop_token& stop) override;
  Result<HttpResponse> stream(const HttpRequest& request, const std::function<bool(std::string_view)>& on_bytes,
                              const std::stop_token& stop) override;
  void shut_down() override { close(); }

 private:
  // A request under way, known to shut_down until the last copy of this is gone.
  using Call = std::shared_ptr<Exchange>;

  std::shared_ptr<http::client::http_client> make_client() const;
  std::shared_ptr<http::client::http_client> client();
  Result<http::http_request> make_request(const HttpRequest& request) const;
  Result<Call> begin(const HttpRequest& request, bool streaming, std::function<void()> on_end);
  Result<HttpResponse> answer(const Call& call, const HttpRequest& request, Exchange::Wake wake);
  Error time_out(const HttpRequest& request, const char* of_what) const;
  enum class Deadline { kKept, kMissed };
  void forget(const Call& call, Deadline deadline = Deadline::kKept);
  void close();

  [[nodiscard]] std::string described(const HttpRequest& request) const {
    return request.method + " " + server_ + url_.path + request.path;
  }

  const ServerUrl url_;
  const std::string server_;
  const std::shared_ptr<TlsSetup> tls_;  // nothing for http
  const size_t body_bytes_max_;
  const std::chrono::milliseconds poll_files_every_;
  Mutex mutex_;
  Clock::time_point poll_files_at_ GUARDED_BY(mutex_);
  std::shared_ptr<http::client::http_client> client_ GUARDED_BY(mutex_);
  std::set<Call> under_way_ GUARDED_BY(mutex_);
  bool closed_ GUARDED_BY(mutex_) = false;
};

std::shared_ptr<http::client::http_client> CpprestTransport::make_client() const {
  http::client::http_client_config config;
  config.set_timeout(kLibraryTimeout);
  config.set_max_redirects(0);  // the library would send the credentials to the other server, too
  if (tls_) {
    // Runs for every new connection, on the thread that asks for it.
    config.set_ssl_context_callback([tls = tls_](boost::asio::ssl::context& context) {
      const Status status = tls->configure(context.native_handle());
      if (!status.ok()) throw std::runtime_error(status.error().message);
    });
    // The library would send IP addresses as well, which SNI does not allow; TlsSetup sends host names only.
    config.set_tlsext_sni_enabled(false);
  }
  // An IPv6 address goes in without its brackets: the resolver is handed what the URI has as its host.
  web::uri_builder address;
  address.set_scheme(url_.https ? "https" : "http").set_host(url_.host).set_port(url_.port).set_path(url_.path);
  return std::make_shared<http::client::http_client>(address.to_uri(), config);
}

std::shared_ptr<http::client::http_client> CpprestTransport::client() {
  const MutexLock lock(mutex_);
  if (tls_ && Clock::now() >= poll_files_at_) {
    poll_files_at_ = Clock::now() + poll_files_every_;
    // The pool of connections belongs to the client: a new one begins with none, what is under way ends on the old one.
    if (tls_->refresh()) client_ = make_client();
  }
  return client_;
}

Result<http::http_request> CpprestTransport::make_request(const HttpRequest& request) const {
  http::http_request out(request.method);
  try {
    std::string target = request.path;
    if (!request.query.empty()) target.append("?").append(request.query);
    out.set_request_uri(web::uri(target));
  } catch (const web::uri_exception& e) {
    return invalid(described(request), e.what());
  }
  // The library would make it of the URI's host, where an IPv6 address has lost its brackets.
  out.headers().add("Host", url_.authority());
  std::string content_type = "application/json";
  for (const auto& [name, value] : request.headers) {
    if (value.find_first_of("\r\n") != std::string::npos)
      return invalid(described(request), "the header " + name + " holds a line break");
    if (name == "Content-Type") {
      content_type = value;
    } else {
      out.headers().add(name, value);
    }
  }
  if (!request.body.empty()) out.set_body(request.body, content_type);
  return out;
}

Result<CpprestTransport::Call> CpprestTransport::begin(const HttpRequest& request, bool streaming,
                                                       std::function<void()> on_end) {
  TRY_ASSIGN(http::http_request out, make_request(request));
  auto call = std::make_shared<Exchange>(client(), streaming, body_bytes_max_, std::move(on_end));
  {
    const MutexLock lock(mutex_);
    if (closed_)
      return Error{ErrorCode::kCancelled, described(request) + ": the connection to the server was shut down"};
    under_way_.insert(call);
  }
  out.set_response_stream(BodyBuffer(call).create_ostream());
  const auto to_error = [described = described(request), server = server_,
                         tls = tls_](const std::exception_ptr& thrown) {
    try {
      std::rethrow_exception(thrown);
    } catch (const http::http_exception& e) {
      return explain(e, server, tls.get());
    } catch (const std::exception& e) {
      return Error{ErrorCode::kUnavailable, described + ": " + e.what()};
    }
  };
  // Both continuations run on the pool's thread, on tasks that have ended: their get() never waits.
  call->client()->request(out, call->token()).then([call, to_error](const pplx::task<http::http_response>& task) {
    http::http_response response;
    try {
      response = task.get();
    } catch (...) {
      call->handle_end(to_error(std::current_exception()));
      return;
    }
    call->handle_head(response);
    response.content_ready().then([call, to_error](const pplx::task<http::http_response>& body) {
      try {
        static_cast<void>(body.get());
        call->handle_end(std::nullopt);
      } catch (...) {
        call->handle_end(to_error(std::current_exception()));
      }
    });
  });
  return call;
}

// A call that misses its deadline may have had a connection whose other end is gone.
void CpprestTransport::forget(const Call& call, Deadline deadline) {
  call->abandon();
  const MutexLock lock(mutex_);
  under_way_.erase(call);
  // If one connection was dead, all others in the pool may be, too, and each would cost another attempt.
  const Exchange::State state = call->state();
  const bool was_dead = deadline == Deadline::kMissed || (state.error && state.error->reason == kReasonNotConnected);
  if (was_dead && call->client() == client_) client_ = make_client();
}

Error CpprestTransport::time_out(const HttpRequest& request, const char* of_what) const {
  return Error{ErrorCode::kUnavailable,
               described(request) + ": " + of_what + " within " + seconds_text(request.timeout)};
}

// The outcome of a call whose `wait` has returned; ends the call.
Result<HttpResponse> CpprestTransport::answer(const Call& call, const HttpRequest& request, Exchange::Wake wake) {
  Exchange::State state = call->state();
  std::string body = call->drain();
  forget(call, wake == Exchange::Wake::kDeadline ? Deadline::kMissed : Deadline::kKept);
  if (wake == Exchange::Wake::kCancelled) return Error{ErrorCode::kCancelled, described(request) + ": shut down"};
  if (wake == Exchange::Wake::kDeadline) return time_out(request, "no whole answer");
  if (state.too_large) {
    return Error{ErrorCode::kCorrupt,
                 described(request) + ": the answer is larger than " + std::to_string(body_bytes_max_) + " bytes",
                 std::string(kReasonTooLarge)};
  }
  if (state.error) return *state.error;
  LOCKSTEP_CHECK(state.head.has_value(), "an exchange ends with a head or with an error");
  state.head->body = std::move(body);
  return *std::move(state.head);
}

std::vector<Result<HttpResponse>> CpprestTransport::send_all(std::span<const HttpRequest> requests,
                                                             size_t in_flight_max, const std::stop_token& stop) {
  struct Finished {
    Mutex mutex;
    ConditionVariable changed;
    std::deque<size_t> indices GUARDED_BY(mutex);
  };
  const auto finished = std::make_shared<Finished>();
  std::vector<std::optional<Result<HttpResponse>>> answers(requests.size());
  std::map<size_t, Call> under_way;  // by index
  size_t next = 0;
  while (next < requests.size() || !under_way.empty()) {
    while (next < requests.size() && under_way.size() < std::max<size_t>(in_flight_max, 1)) {
      const size_t index = next++;
      if (stop.stop_requested()) {
        answers[index] = Error{ErrorCode::kCancelled, described(requests[index]) + ": stopped before it was sent"};
        continue;
      }
      Result<Call> call = begin(requests[index], false, [finished, index] {
        {
          const MutexLock lock(finished->mutex);
          finished->indices.push_back(index);
        }
        finished->changed.notify_one();
      });
      if (call.ok()) {
        under_way.emplace(index, *call);
      } else {
        answers[index] = call.error();
      }
    }
    if (under_way.empty()) continue;
    const auto deadline_of = [&](const auto& entry) {
      return entry.second->began_at() + requests[entry.first].timeout;
    };
    const auto next_due = std::min_element(under_way.begin(), under_way.end(), [&](const auto& a, const auto& b) {
      return deadline_of(a) < deadline_of(b);
    });
    std::optional<size_t> index;
    {
      MutexLock lock(finished->mutex);
      finished->changed.wait_until(lock, deadline_of(*next_due),
                                   [&]() REQUIRES(finished->mutex) { return !finished->indices.empty(); });
      if (!finished->indices.empty()) {
        index = finished->indices.front();
        finished->indices.pop_front();
      }
    }
    const auto done = under_way.find(index.value_or(next_due->first));
    if (done == under_way.end()) continue;  // cancelled, and ended later
    const HttpRequest& request = requests[done->first];
    const Exchange::Wake wake = done->second->wait(request.timeout, false);  // at once: it has ended, or is overdue
    answers[done->first] = answer(done->second, request, wake);
    under_way.erase(done);
  }
  std::vector<Result<HttpResponse>> all;
  all.reserve(answers.size());
  for (auto& one : answers) all.push_back(*std::move(one));
  return all;
}

Result<HttpResponse> CpprestTransport::stream(const HttpRequest& request,
                                              const std::function<bool(std::string_view)>& on_bytes,
                                              const std::stop_token& stop) {
  TRY_ASSIGN(const Call call, begin(request, true, {}));
  const std::stop_callback on_stop(stop, [&call] { call->cancel(); });
  std::string refusal;  // the body of an answer that is not 2xx
  while (true) {
    const Exchange::Wake wake = call->wait(request.timeout, true);
    // First the state, then the bytes: after its end nothing arrives.
    Exchange::State state = call->state();
    const std::string bytes = call->drain();
    if (wake == Exchange::Wake::kCancelled) {
      forget(call);
      return Error{ErrorCode::kCancelled, described(request) + ": stopped"};
    }
    if (wake == Exchange::Wake::kDeadline) {
      forget(call, Deadline::kMissed);
      if (state.head && state.head->status / 100 == 2) return *std::move(state.head);
      return time_out(request, state.head ? "nothing more" : "no answer");
    }
    if (!state.head) {
      forget(call);
      LOCKSTEP_CHECK(state.error.has_value(), "an exchange ends with a head or with an error");
      return *state.error;
    }
    bool go_on = !state.ended;
    if (state.head->status / 100 != 2) {
      refusal.append(bytes);
      go_on = go_on && refusal.size() <= body_bytes_max_;
    } else if (!bytes.empty()) {
      go_on = on_bytes(bytes) && go_on;
    }
    if (!go_on) {
      forget(call);
      state.head->body = std::move(refusal);
      return *std::move(state.head);
    }
  }
}

void CpprestTransport::close() {
  const MutexLock lock(mutex_);
  closed_ = true;
  for (const Call& call : under_way_) call->cancel();
}

}  // namespace

Result<std::shared_ptr<HttpTransport>> make_cpprest_transport(const CpprestTransportOptions& options) {
  TRY_ASSIGN(ServerUrl url, parse_server_url(options.url));
  std::shared_ptr<TlsSetup> tls;
  if (url.https) {
    TRY_ASSIGN(tls, TlsSetup::make(options.tls, url));
  }
  static_cast<void>(pool());
  return std::shared_ptr<HttpTransport>(std::make_shared<CpprestTransport>(std::move(url), std::move(tls), options));
}

}  // namespace lockstep::kube
