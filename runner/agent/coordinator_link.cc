#include "runner/agent/coordinator_link.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "runner/contract/generation.h"

namespace lockstep {

namespace asio = boost::asio;
using boost::system::error_code;

namespace {

// Limit for an answer to a Greet; longer lines are accepted only from the coordinator that was chosen.
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

std::chrono::milliseconds seek_pause(std::chrono::milliseconds backoff, int node_rank) {
  // The fractions of the multiples of the golden ratio are spread evenly, however many nodes there are.
  constexpr double kGoldenRatio = 0.6180339887498949;
  const double multiple = node_rank * kGoldenRatio;
  const double share = 0.5 + 0.5 * (multiple - std::floor(multiple));
  return std::chrono::duration_cast<std::chrono::milliseconds>(backoff * share);
}

TcpCoordinatorLink::TcpCoordinatorLink(asio::io_context& loop, CoordinatorAddress address, Greet greet,
                                       Handlers handlers)
    : loop_(loop),
      address_(std::move(address)),
      greet_(std::move(greet)),
      handlers_(std::move(handlers)),
      resolver_(loop),
      timer_(loop),
      hint_timer_(loop) {
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
  drop_probe();
  drop_chosen();
}

// ---- a round: wait a little, resolve, greet everybody, choose ----

void TcpCoordinatorLink::seek() {
  if (stage_ != Stage::kIdle && stage_ != Stage::kConnected) return;
  // After a connection that went beyond the greeting, look again at once; otherwise with backoff.
  if (joined_ && !refused_) backoff_ = std::chrono::milliseconds(0);
  if (chosen_ && is_hinted(*chosen_)) {
    // Refused because this node's place is taken there: it may be free in a moment. If it stays taken, the coordinator
    // at the hint may be an old one.
    const bool is_turned_away = refused_ && ++hint_refusals_ >= kHintRefusalsMax;
    if (joined_ && !refused_) hint_refusals_ = 0;
    if (!joined_ || is_turned_away) hint_decides_ = false;
  }
  drop_chosen();
  stage_ = Stage::kBackingOff;
  after(seek_pause(backoff_, greet_.node_rank), &TcpCoordinatorLink::begin_round);
  backoff_ = std::clamp(2 * backoff_, kSeekBackoffInitial, kSeekBackoffMax);
}

void TcpCoordinatorLink::after(asio::steady_timer& timer, std::chrono::milliseconds timeout, Action action) {
  timer.expires_after(timeout);
  timer.async_wait([weak = weak_from_this(), round = round_, stage = stage_, action](error_code error) {
    const auto self = weak.lock();
    if (!error && self && self->round_ == round && self->stage_ == stage) (self.get()->*action)();
  });
}

void TcpCoordinatorLink::begin_round() {
  ++round_;
  stage_ = Stage::kResolving;
  name_problem_.clear();
  hint_backoff_ = kSeekBackoffInitial;
  resolver_.cancel();  // a request of an earlier round
  after(kResolveTimeout, &TcpCoordinatorLink::on_resolve_timeout);
  if (hint_) ask_hint();
  resolve_([weak = weak_from_this(), round = round_](error_code error, std::vector<Tcp::endpoint> endpoints) {
    const auto self = weak.lock();
    if (!self || self->round_ != round || self->stage_ != Stage::kResolving) return;
    self->on_resolved(error, std::move(endpoints));
  });
}

void TcpCoordinatorLink::on_resolved(const error_code& error, std::vector<Tcp::endpoint> endpoints) {
  if (error) {
    name_problem_ = "the name does not resolve: " + error.message();
    return ask_all({});
  }
  std::sort(endpoints.begin(), endpoints.end());
  endpoints.erase(std::unique(endpoints.begin(), endpoints.end()), endpoints.end());
  if (endpoints.size() > kCoordinatorAddressesMax) endpoints.resize(kCoordinatorAddressesMax);
  if (endpoints.empty()) name_problem_ = "the name resolves to no address";
  ask_all(endpoints);
}

void TcpCoordinatorLink::on_resolve_timeout() {
  name_problem_ = "the name service does not answer";
  ask_all({});
}

// Tries the addresses of the name; the hint was tried before.
void TcpCoordinatorLink::ask_all(const std::vector<Tcp::endpoint>& endpoints) {
  stage_ = Stage::kAsking;
  std::vector<std::shared_ptr<Attempt>> fresh;
  for (const Tcp::endpoint& endpoint : endpoints) {
    std::shared_ptr<Attempt> attempt = attempt_at(endpoint);
    if (attempt == nullptr) fresh.push_back(attempt = new_attempt(endpoint));
    attempt->by_name = true;
  }
  if (hint_ && !fresh.empty() && attempt_at(*hint_) == nullptr) fresh.push_back(new_attempt(*hint_));
  if (std::all_of(attempts_.begin(), attempts_.end(), [](const auto& a) { return a->is_settled(); })) {
    return end_round();
  }
  after(has_answer() ? kOtherAnswersTimeout : kConnectTimeout, &TcpCoordinatorLink::end_round);
  for (const auto& attempt : fresh) connect(attempt);
}

std::shared_ptr<TcpCoordinatorLink::Attempt> TcpCoordinatorLink::new_attempt(const Tcp::endpoint& endpoint) {
  // Replaces an attempt at this endpoint that has failed.
  std::erase_if(attempts_, [&](const auto& a) { return a->endpoint == endpoint; });
  attempts_.push_back(std::make_shared<Attempt>());
  attempts_.back()->endpoint = endpoint;
  return attempts_.back();
}

bool TcpCoordinatorLink::has_answer() const {
  return std::any_of(attempts_.begin(), attempts_.end(), [](const auto& a) { return a->answer.has_value(); });
}

std::shared_ptr<TcpCoordinatorLink::Attempt> TcpCoordinatorLink::attempt_at(const Tcp::endpoint& endpoint) const {
  const auto at = std::find_if(attempts_.begin(), attempts_.end(),
                               [&](const auto& a) { return a->endpoint == endpoint && a->problem.empty(); });
  return at == attempts_.end() ? nullptr : *at;
}

void TcpCoordinatorLink::connect(const std::shared_ptr<Attempt>& attempt) {
  attempt->connecting = std::make_unique<Tcp::socket>(loop_);
  attempt->connecting->async_connect(attempt->endpoint, [weak = weak_from_this(), attempt](error_code error) {
    const auto self = weak.lock();
    if (!self || attempt->dropped) return;
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
  // The attempt owns the socket, so the socket's handlers must not own the attempt.
  const std::weak_ptr<Attempt> weak_attempt = attempt;
  attempt->socket->start({.on_line =
                              [this, weak_attempt](const std::string& line) {
                                const auto self = shared_from_this();  // a handler may drop the last reference
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
    return on_attempt_closed(attempt, "it does not answer like a coordinator: " + message.error().message);
  }
  if (attempt == chosen_) return on_said(*message);
  if (attempt->dropped || attempt->is_settled()) return;
  if (const auto* const welcome = std::get_if<Welcome>(&*message)) {
    attempt->answer = *welcome;
  } else if (const auto* const refused = std::get_if<Refused>(&*message)) {
    attempt->answer = *refused;
  } else {
    attempt->socket->close();
    attempt->problem = "it answered Greet with another message than Welcome or Refused";
  }
  settle(attempt);
}

void TcpCoordinatorLink::on_said(const CoordinatorMessage& message) {
  if (const auto* const refused = std::get_if<Refused>(&message)) {
    // Our Join was refused, or another agent has taken this node's place. refused_ makes the next seek use backoff, so
    // that a place that stays taken is not requested in a busy loop.
    refused_ = true;
    return handlers_.on_refused(*refused);
  }
  handlers_.on_said(message);
}

void TcpCoordinatorLink::on_attempt_closed(const std::shared_ptr<Attempt>& attempt, const std::string& why) {
  if (attempt == chosen_) {
    drop_probe();
    chosen_.reset();
    stage_ = Stage::kIdle;
    return handlers_.on_lost(why);
  }
  // A coordinator closes the connection after Refused; the refusal remains the answer.
  if (attempt->dropped || attempt->is_settled()) return;
  attempt->problem = why;
  settle(attempt);
}

void TcpCoordinatorLink::settle(const std::shared_ptr<Attempt>& attempt) {
  if (attempt == probe_) {
    if (attempt->answer) on_probe_answer(*attempt->answer);
    return;  // without an answer the hint is probed again when the timer expires
  }
  const bool is_welcome = attempt->answer && std::holds_alternative<Welcome>(*attempt->answer);
  if (is_welcome && hint_decides_ && is_hinted(*attempt)) return end_round();
  const bool all = std::all_of(attempts_.begin(), attempts_.end(), [](const auto& a) { return a->is_settled(); });
  if (all && stage_ == Stage::kAsking) return end_round();
  if (!attempt->answer && is_hinted(*attempt)) {
    // Node 0's agent may begin to listen at any moment, so the hint is tried again during the round.
    after(hint_timer_, hint_backoff_, &TcpCoordinatorLink::ask_hint);
    hint_backoff_ = std::min<std::chrono::milliseconds>(2 * hint_backoff_, kSeekBackoffMax);
  }
  if (stage_ != Stage::kAsking) return;
  const auto answers = std::count_if(attempts_.begin(), attempts_.end(), [](const auto& a) { return a->answer; });
  if (attempt->answer && answers == 1) after(kOtherAnswersTimeout, &TcpCoordinatorLink::end_round);
}

void TcpCoordinatorLink::end_round() {
  std::vector<std::shared_ptr<Attempt>> answered;
  std::vector<GreetingAnswer> answers;
  std::string problem = name_problem_;
  bool has_hint_answered = false;
  for (const auto& attempt : attempts_) {
    if (attempt->answer) {
      answered.push_back(attempt);
      answers.push_back(*attempt->answer);
      // Another pod may have got the address of a pod that is gone, so a refusal from there is not final.
      if (auto* const refused = std::get_if<Refused>(&answers.back())) refused->retry |= !attempt->by_name;
      has_hint_answered = has_hint_answered || is_hinted(*attempt);
    }
    const std::string what = attempt->problem.empty() ? "no answer" : attempt->problem;
    problem += (problem.empty() ? "" : "; ") + text_of(attempt->endpoint) + ": " + what;
  }
  if (answers.empty()) return fail_round(problem);
  const size_t choice = choose_answer(answers);
  const std::shared_ptr<Attempt> best = answered[choice];
  const auto* const welcome = std::get_if<Welcome>(&answers[choice]);
  if (welcome != nullptr && !best->socket->is_open()) {
    return fail_round(text_of(best->endpoint) + ": sent Welcome and closed the connection");
  }
  if (welcome != nullptr) chosen_ = best;
  drop_attempts();
  timer_.cancel();
  hint_timer_.cancel();
  stage_ = welcome != nullptr ? Stage::kConnected : Stage::kIdle;
  if (welcome == nullptr) return handlers_.on_refused(std::get<Refused>(answers[choice]));
  chosen_->socket->set_line_bytes_max(kCoordinationLineBytesMax);
  probe_tries_ = 0;
  if (hint_ && hint_decides_ && !has_hint_answered && !is_hinted(*chosen_)) probe_hint();
  handlers_.on_found(*welcome);
}

void TcpCoordinatorLink::fail_round(const std::string& problem) {
  drop_attempts();
  stage_ = Stage::kIdle;
  seek();
  handlers_.on_problem(problem);
}

// ---- the hint: the address of node 0 that the operator sends ----

void TcpCoordinatorLink::hint(const asio::ip::address& address) {
  if (stage_ == Stage::kClosed) return;
  hint_ = Tcp::endpoint(plain_address(address), static_cast<uint16_t>(address_.port));
  hint_decides_ = true;
  hint_refusals_ = 0;
  backoff_ = std::min(backoff_, kSeekBackoffInitial);
  hint_backoff_ = kSeekBackoffInitial;
  probe_tries_ = 0;
  switch (stage_) {
    case Stage::kIdle:
    case Stage::kClosed:
      return;  // used in the next round
    case Stage::kBackingOff:
      return begin_round();
    case Stage::kAsking:
      if (!has_answer()) after(kConnectTimeout, &TcpCoordinatorLink::end_round);
      return ask_hint();
    case Stage::kResolving:
      return ask_hint();
    case Stage::kConnected:
      drop_probe();
      if (!is_hinted(*chosen_)) probe_hint();
  }
}

// Tries the hint within the present round.
void TcpCoordinatorLink::ask_hint() {
  const std::shared_ptr<Attempt> asked = attempt_at(*hint_);
  if (asked == nullptr) return connect(new_attempt(*hint_));
  // It has sent Welcome already, before it became the hint. A timer ends the round, because handlers must be called
  // from the loop.
  const bool is_welcome = asked->answer && std::holds_alternative<Welcome>(*asked->answer);
  if (is_welcome && hint_decides_) after(std::chrono::milliseconds(0), &TcpCoordinatorLink::end_round);
}

// Probes the hint while connected to another address, again and again until something answers there.
void TcpCoordinatorLink::probe_hint() {
  drop_probe();
  if (++probe_tries_ > kHintProbeTriesMax) return;
  probe_ = std::make_shared<Attempt>();
  probe_->endpoint = *hint_;
  after(hint_timer_, kHintProbeInterval, &TcpCoordinatorLink::probe_hint);
  connect(probe_);
}

// Compares the pod attempts in the generations and not the whole generations: the same coordinator may have two
// addresses, and its generation increases meanwhile.
void TcpCoordinatorLink::on_probe_answer(const GreetingAnswer& answer) {
  const auto* const welcome = std::get_if<Welcome>(&answer);
  const auto* const refused = std::get_if<Refused>(&answer);
  if (refused != nullptr && refused->retry) return;  // asked again later
  const uint64_t current = std::get<Welcome>(*chosen_->answer).generation;
  const bool is_newer = welcome != nullptr && attempt_of(welcome->generation) > attempt_of(current);
  hint_decides_ = welcome != nullptr && attempt_of(welcome->generation) >= attempt_of(current);
  const std::string where = text_of(probe_->endpoint);
  hint_timer_.cancel();
  drop_probe();
  if (!is_newer) return;
  drop_chosen();
  backoff_ = std::chrono::milliseconds(0);
  stage_ = Stage::kIdle;
  handlers_.on_lost("the operator says that node 0 is at " + where + " now");
}

// ---- the chosen connection ----

void TcpCoordinatorLink::send(const MemberMessage& message) {
  if (!chosen_) return;
  joined_ = true;
  chosen_->socket->send(encode(message));
}

void TcpCoordinatorLink::drop(Attempt& attempt) {
  attempt.dropped = true;
  error_code ignored;
  if (attempt.connecting) attempt.connecting->close(ignored);
  if (attempt.socket) attempt.socket->close();
}

void TcpCoordinatorLink::drop_attempts() {
  for (const auto& attempt : attempts_) {
    if (attempt != chosen_) drop(*attempt);
  }
  attempts_.clear();
}

void TcpCoordinatorLink::drop_probe() {
  if (probe_) drop(*probe_);
  probe_.reset();
}

void TcpCoordinatorLink::drop_chosen() {
  drop_probe();
  if (chosen_) drop(*chosen_);
  chosen_.reset();
  joined_ = false;
  refused_ = false;
}

void TcpCoordinatorLink::close() {
  if (chosen_) chosen_->socket->close_after_sending();
  drop_attempts();
  drop_probe();
  timer_.cancel();
  hint_timer_.cancel();
  resolver_.cancel();
  stage_ = Stage::kClosed;
}

std::string TcpCoordinatorLink::local_address() const {
  if (!chosen_) return "";
  const asio::ip::address address = plain_address(chosen_->local.address());
  return address.is_loopback() ? "" : address.to_string();
}

std::string TcpCoordinatorLink::peer() const { return chosen_ ? text_of(chosen_->endpoint) : ""; }

bool TcpCoordinatorLink::is_idle() const { return !chosen_ || chosen_->socket->unsent_bytes() == 0; }

}  // namespace lockstep
