#include "runner/agent/coordinator_link.h"

#include <algorithm>
#include <utility>

namespace lockstep {

namespace asio = boost::asio;
using boost::system::error_code;

namespace {

// What an answer to a greeting may hold; the rest comes from a coordinator that we joined.
constexpr size_t kAnswerBytesMax = size_t{64} << 10;

std::string text_of(const TcpCoordinatorLink::Tcp::endpoint& endpoint) {
  const std::string host = address_text(endpoint.address());
  const bool is_v6 = host.find(':') != std::string::npos;
  return (is_v6 ? "[" + host + "]" : host) + ":" + std::to_string(endpoint.port());
}

bool is_better(const GreetingAnswer& a, const GreetingAnswer& b) {
  const auto* const welcome_a = std::get_if<Welcome>(&a);
  const auto* const welcome_b = std::get_if<Welcome>(&b);
  if (welcome_a != nullptr && welcome_b != nullptr) return welcome_a->generation > welcome_b->generation;
  if (welcome_a != nullptr || welcome_b != nullptr) return welcome_a != nullptr;
  return std::get<Refused>(a).retry && !std::get<Refused>(b).retry;
}

}  // namespace

size_t choose_answer(const std::vector<GreetingAnswer>& answers) {
  size_t best = 0;
  for (size_t i = 1; i < answers.size(); ++i) {
    if (is_better(answers[i], answers[best])) best = i;
  }
  return best;
}

TcpCoordinatorLink::TcpCoordinatorLink(asio::io_context& loop, CoordinatorAddress address, Greet greet,
                                       Handlers handlers)
    : loop_(loop),
      address_(std::move(address)),
      greet_(std::move(greet)),
      handlers_(std::move(handlers)),
      resolver_(loop),
      timer_(loop) {
  resolve_ = [this](auto done) {
    resolver_.async_resolve(address_.host, std::to_string(address_.port),
                            [done = std::move(done)](error_code error, const Tcp::resolver::results_type& found) {
                              std::vector<Tcp::endpoint> endpoints;
                              for (const auto& entry : found) endpoints.push_back(entry.endpoint());
                              done(error, std::move(endpoints));
                            });
  };
}

TcpCoordinatorLink::~TcpCoordinatorLink() {
  drop_attempts();
  drop_chosen();
}

// ---- a round: wait a little, resolve, greet everybody, choose ----

void TcpCoordinatorLink::seek() {
  if (stage_ != Stage::kIdle && stage_ != Stage::kConnected) return;
  // A coordinator that was good for more than a greeting is looked for at once, anybody else not in a hot loop.
  if (joined_) backoff_ = std::chrono::milliseconds(0);
  drop_chosen();
  stage_ = Stage::kBackingOff;
  after(backoff_, &TcpCoordinatorLink::begin_round);
  backoff_ = std::clamp(2 * backoff_, kSeekBackoffInitial, kSeekBackoffMax);
}

void TcpCoordinatorLink::after(std::chrono::milliseconds timeout, void (TcpCoordinatorLink::*action)()) {
  timer_.expires_after(timeout);
  timer_.async_wait([weak = weak_from_this(), round = round_, stage = stage_, action](error_code error) {
    const auto self = weak.lock();
    if (!error && self && self->round_ == round && self->stage_ == stage) (self.get()->*action)();
  });
}

void TcpCoordinatorLink::begin_round() {
  ++round_;
  stage_ = Stage::kResolving;
  after(kResolveTimeout, &TcpCoordinatorLink::on_resolve_timeout);
  resolve_([weak = weak_from_this(), round = round_](error_code error, std::vector<Tcp::endpoint> endpoints) {
    const auto self = weak.lock();
    if (!self || self->round_ != round || self->stage_ != Stage::kResolving) return;
    self->on_resolved(error, std::move(endpoints));
  });
}

void TcpCoordinatorLink::on_resolved(const error_code& error, std::vector<Tcp::endpoint> endpoints) {
  if (error) return fail_round("the name does not resolve: " + error.message());
  std::sort(endpoints.begin(), endpoints.end());
  endpoints.erase(std::unique(endpoints.begin(), endpoints.end()), endpoints.end());
  if (endpoints.size() > kCoordinatorAddressesMax) endpoints.resize(kCoordinatorAddressesMax);
  if (endpoints.empty()) return fail_round("the name resolves to no address");
  stage_ = Stage::kAsking;
  for (const Tcp::endpoint& endpoint : endpoints) {
    attempts_.push_back(std::make_shared<Attempt>());
    attempts_.back()->endpoint = endpoint;
    attempts_.back()->connecting = std::make_unique<Tcp::socket>(loop_);
  }
  after(kConnectTimeout, &TcpCoordinatorLink::end_round);
  const auto all = attempts_;  // an attempt that fails at once may end the round
  for (const auto& attempt : all) connect(attempt);
}

void TcpCoordinatorLink::connect(const std::shared_ptr<Attempt>& attempt) {
  attempt->connecting->async_connect(attempt->endpoint,
                                     [weak = weak_from_this(), round = round_, attempt](error_code error) {
                                       const auto self = weak.lock();
                                       if (!self || self->round_ != round || self->stage_ != Stage::kAsking) return;
                                       if (!error) return self->greet(attempt);
                                       attempt->problem = error.message();
                                       self->settle(attempt);
                                     });
}

void TcpCoordinatorLink::greet(const std::shared_ptr<Attempt>& attempt) {
  prepare_tcp(*attempt->connecting);
  error_code ignored;
  attempt->local = attempt->connecting->local_endpoint(ignored);
  attempt->socket = std::make_shared<LineSocket>(
      loop_, LineSocket::Socket(std::move(*attempt->connecting)),
      LineSocket::Limits{.line_bytes_max = kAnswerBytesMax, .queue_bytes_max = kCoordinationQueueBytesMax});
  // The attempt owns the socket, the socket's handlers must not own the attempt.
  const std::weak_ptr<Attempt> weak_attempt = attempt;
  attempt->socket->start({.on_line =
                              [this, weak_attempt](const std::string& line) {
                                const auto self = shared_from_this();  // a handler may let go of us
                                if (const auto a = weak_attempt.lock()) on_attempt_line(a, line);
                              },
                          .on_closed =
                              [this, weak_attempt](const std::string& why) {
                                const auto self = shared_from_this();
                                if (const auto a = weak_attempt.lock()) on_attempt_closed(a, why);
                              }});
  attempt->socket->send(encode(MemberMessage(greet_)));
}

void TcpCoordinatorLink::on_attempt_line(const std::shared_ptr<Attempt>& attempt, const std::string& line) {
  Result<CoordinatorMessage> message = decode_coordinator_message(line);
  if (!message.ok()) {
    attempt->socket->close();
    return on_attempt_closed(attempt, "it is no coordinator of ours: " + message.error().message);
  }
  if (attempt == chosen_) return on_said(*message);
  if (attempt->is_settled()) return;
  if (const auto* const welcome = std::get_if<Welcome>(&*message)) {
    attempt->answer = *welcome;
  } else if (const auto* const refused = std::get_if<Refused>(&*message)) {
    attempt->answer = *refused;
  } else {
    attempt->socket->close();
    attempt->problem = "it answered a greeting with something else";
  }
  settle(attempt);
}

void TcpCoordinatorLink::on_said(const CoordinatorMessage& message) {
  // Another agent has taken this node's place.
  if (const auto* const refused = std::get_if<Refused>(&message)) return handlers_.on_refused(*refused);
  handlers_.on_said(message);
}

void TcpCoordinatorLink::on_attempt_closed(const std::shared_ptr<Attempt>& attempt, const std::string& why) {
  if (attempt == chosen_) {
    chosen_.reset();
    stage_ = Stage::kIdle;
    return handlers_.on_lost(why);
  }
  // A refusal is followed by a close; it stays the answer.
  if (attempt->is_settled()) return;
  attempt->problem = why;
  settle(attempt);
}

void TcpCoordinatorLink::settle(const std::shared_ptr<Attempt>& attempt) {
  const bool all = std::all_of(attempts_.begin(), attempts_.end(), [](const auto& a) { return a->is_settled(); });
  if (all) return end_round();
  const auto answers = std::count_if(attempts_.begin(), attempts_.end(), [](const auto& a) { return a->answer; });
  if (attempt->answer && answers == 1) after(kOtherAnswersTimeout, &TcpCoordinatorLink::end_round);
}

void TcpCoordinatorLink::end_round() {
  std::vector<std::shared_ptr<Attempt>> answered;
  std::vector<GreetingAnswer> answers;
  std::string problem;
  for (const auto& attempt : attempts_) {
    if (attempt->answer) {
      answered.push_back(attempt);
      answers.push_back(*attempt->answer);
    }
    const std::string what = attempt->problem.empty() ? "no answer" : attempt->problem;
    problem += (problem.empty() ? "" : "; ") + text_of(attempt->endpoint) + ": " + what;
  }
  if (answers.empty()) return fail_round(problem);
  const std::shared_ptr<Attempt> best = answered[choose_answer(answers)];
  if (std::holds_alternative<Welcome>(*best->answer) && !best->socket->is_open()) {
    return fail_round(text_of(best->endpoint) + ": welcomed us and closed the connection");
  }
  const auto* const welcome = std::get_if<Welcome>(&*best->answer);
  if (welcome != nullptr) chosen_ = best;
  drop_attempts();
  timer_.cancel();
  stage_ = welcome != nullptr ? Stage::kConnected : Stage::kIdle;
  if (welcome == nullptr) return handlers_.on_refused(std::get<Refused>(*best->answer));
  chosen_->socket->set_line_bytes_max(kCoordinationLineBytesMax);
  handlers_.on_found(*welcome);
}

void TcpCoordinatorLink::fail_round(const std::string& problem) {
  drop_attempts();
  stage_ = Stage::kIdle;
  seek();
  handlers_.on_problem(problem);
}

// ---- the chosen connection ----

void TcpCoordinatorLink::send(const MemberMessage& message) {
  if (!chosen_) return;
  joined_ = true;
  chosen_->socket->send(encode(message));
}

void TcpCoordinatorLink::drop_attempts() {
  for (const auto& attempt : attempts_) {
    if (attempt == chosen_) continue;
    error_code ignored;
    if (attempt->connecting) attempt->connecting->close(ignored);
    if (attempt->socket) attempt->socket->close();
  }
  attempts_.clear();
}

void TcpCoordinatorLink::drop_chosen() {
  if (chosen_) chosen_->socket->close();
  chosen_.reset();
  joined_ = false;
}

void TcpCoordinatorLink::close() {
  if (chosen_) chosen_->socket->close_after_sending();
  drop_attempts();
  timer_.cancel();
  resolver_.cancel();
  stage_ = Stage::kClosed;
}

std::string TcpCoordinatorLink::local_address() const {
  if (!chosen_) return "";
  const std::string text = address_text(chosen_->local.address());
  return asio::ip::make_address(text).is_loopback() ? "" : text;
}

std::string TcpCoordinatorLink::peer() const { return chosen_ ? text_of(chosen_->endpoint) : ""; }

bool TcpCoordinatorLink::is_idle() const { return !chosen_ || chosen_->socket->unsent_bytes() == 0; }

}  // namespace lockstep
