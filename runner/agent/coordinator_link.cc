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
  const double fraction = 0.5 + 0.5 * (multiple - std::floor(multiple));
  return std::chrono::duration_cast<std::chrono::milliseconds>(backoff * fraction);
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
  end_search();
  drop_chosen();
}

// ---- a round: wait a little, resolve, greet everybody, choose ----

void TcpCoordinatorLink::seek() {
  const bool is_seeking = !chosen_ && stage_ != Stage::kIdle;
  if (is_seeking || stage_ == Stage::kClosed) return;
  // After a connection that went beyond the greeting, look again at once; otherwise with backoff.
  if (joined_ && !refused_) backoff_ = std::chrono::milliseconds(0);
  end_search();
  drop_chosen();
  pause(seek_pause(backoff_, greet_.node_rank));
  backoff_ = std::clamp(2 * backoff_, kSeekBackoffInitial, kSeekBackoffMax);
}

void TcpCoordinatorLink::ask_also(const asio::ip::address& address) {
  if (stage_ == Stage::kClosed) return;
  operators_ = Tcp::endpoint(plain_address(address), static_cast<uint16_t>(address_.port));
  if (chosen_ && chosen_->endpoint == *operators_) return end_search();
  ask_again_left_ = kAskAgainMax;
  backoff_ = std::min(backoff_, kSeekBackoffInitial);
  if (stage_ == Stage::kAsking) {
    if (!has_answer()) after(kConnectTimeout, &TcpCoordinatorLink::end_round);
    return ask(*operators_, /*by_name=*/false);
  }
  if (chosen_ || stage_ == Stage::kPausing) begin_round();
}

void TcpCoordinatorLink::after(std::chrono::milliseconds timeout, Action action) {
  timer_.expires_after(timeout);
  timer_.async_wait([weak = weak_from_this(), round = round_, stage = stage_, action](error_code error) {
    const auto self = weak.lock();
    if (!error && self && self->round_ == round && self->stage_ == stage) (self.get()->*action)();
  });
}

void TcpCoordinatorLink::pause(std::chrono::milliseconds duration) {
  stage_ = Stage::kPausing;
  after(duration, &TcpCoordinatorLink::begin_round);
}

void TcpCoordinatorLink::begin_round() {
  ++round_;
  stage_ = Stage::kAsking;
  is_resolved_ = false;
  name_problem_ = "the name service does not answer";
  after(operators_ ? kConnectTimeout : kResolveTimeout, &TcpCoordinatorLink::end_round);
  if (operators_) ask(*operators_, /*by_name=*/false);
  if (std::exchange(is_resolving_, true)) return;  // the answer may come in a later round
  resolve_([weak = weak_from_this()](error_code error, const std::vector<Tcp::endpoint>& endpoints) {
    const auto self = weak.lock();
    if (!self) return;
    self->is_resolving_ = false;
    if (self->stage_ == Stage::kAsking) self->on_resolved(error, endpoints);
  });
}

void TcpCoordinatorLink::on_resolved(const error_code& error, const std::vector<Tcp::endpoint>& endpoints) {
  is_resolved_ = true;
  name_problem_.clear();
  if (error) {
    name_problem_ = "the name does not resolve: " + error.message();
  } else if (endpoints.empty()) {
    name_problem_ = "the name resolves to no address";
  } else {
    if (!has_answer()) after(kConnectTimeout, &TcpCoordinatorLink::end_round);
    for (const Tcp::endpoint& endpoint : endpoints) ask(endpoint, /*by_name=*/true);
  }
  if (is_round_settled()) end_round();
}

// Each address is asked once in a round; that of the coordinator to which the link is connected, not at all.
void TcpCoordinatorLink::ask(const Tcp::endpoint& endpoint, bool by_name) {
  if (chosen_ && chosen_->endpoint == endpoint) return;
  const auto asked =
      std::find_if(attempts_.begin(), attempts_.end(), [&](const auto& a) { return a->endpoint == endpoint; });
  if (asked != attempts_.end()) {
    (*asked)->by_name |= by_name;
    return;
  }
  if (attempts_.size() >= kCoordinatorAddressesMax) return;
  const auto attempt = attempts_.emplace_back(std::make_shared<Attempt>());
  attempt->endpoint = endpoint;
  attempt->by_name = by_name;
  connect(attempt);
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
  attempt->socket->send(encode(NodeMessage(greet_)));
}

void TcpCoordinatorLink::on_attempt_line(const std::shared_ptr<Attempt>& attempt, const std::string& line) {
  Result<CoordinatorMessage> message = decode_coordinator_message(line);
  if (!message.ok()) {
    attempt->socket->close();
    return on_attempt_closed(attempt, "it does not answer like a coordinator: " + message.error().message);
  }
  if (attempt == chosen_) return on_message(*message);
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

void TcpCoordinatorLink::on_message(const CoordinatorMessage& message) {
  if (const auto* const refused = std::get_if<Refused>(&message)) {
    // Our Join was refused, or another agent has taken this node's place. refused_ makes the next seek use backoff, so
    // that a place that stays taken is not requested in a busy loop.
    refused_ = true;
    return handlers_.on_refused(*refused);
  }
  handlers_.on_message(message);
}

void TcpCoordinatorLink::on_attempt_closed(const std::shared_ptr<Attempt>& attempt, const std::string& why) {
  if (attempt == chosen_) {
    end_search();
    chosen_.reset();
    return handlers_.on_lost(why);
  }
  // A coordinator closes the connection after Refused; the refusal remains the answer.
  if (attempt->dropped || (attempt->is_settled() && attempt->welcome() == nullptr)) return;
  attempt->problem = attempt->answer ? "sent Welcome and closed the connection" : why;
  attempt->answer.reset();
  settle(attempt);
}

bool TcpCoordinatorLink::has_answer() const {
  return std::any_of(attempts_.begin(), attempts_.end(), [](const auto& a) { return a->answer.has_value(); });
}

bool TcpCoordinatorLink::is_round_settled() const {
  return is_resolved_ && std::all_of(attempts_.begin(), attempts_.end(), [](const auto& a) { return a->is_settled(); });
}

void TcpCoordinatorLink::settle(const std::shared_ptr<Attempt>& attempt) {
  if (is_round_settled()) return end_round();
  const auto answers = std::count_if(attempts_.begin(), attempts_.end(), [](const auto& a) { return a->answer; });
  if (attempt->answer && answers == 1) after(kOtherAnswersTimeout, &TcpCoordinatorLink::end_round);
}

void TcpCoordinatorLink::end_round() {
  std::vector<std::shared_ptr<Attempt>> answered;
  std::vector<GreetingAnswer> answers;
  for (const auto& attempt : attempts_) {
    if (!attempt->answer) continue;
    answered.push_back(attempt);
    answers.push_back(*attempt->answer);
    // Another pod may have got the address of a pod that is gone, so a refusal from there is not final.
    if (auto* const refused = std::get_if<Refused>(&answers.back())) refused->retry |= !attempt->by_name;
  }
  const size_t choice = answers.empty() ? 0 : choose_answer(answers);
  const std::shared_ptr<Attempt> best = answers.empty() ? nullptr : answered[choice];
  if (chosen_) return move_to_a_newer(best.get());
  if (best == nullptr) return fail_round();
  if (best->welcome() != nullptr) return use(best);
  end_search();
  handlers_.on_refused(std::get<Refused>(answers[choice]));
}

void TcpCoordinatorLink::use(const std::shared_ptr<Attempt>& best) {
  chosen_ = best;
  std::erase(attempts_, best);
  const bool is_elsewhere = operators_ && best->endpoint != *operators_;
  const bool asks_again = is_elsewhere && !has_operators_answered();
  end_search();
  chosen_->socket->set_line_bytes_max(kCoordinationLineBytesMax);
  ask_again_left_ = kAskAgainMax;
  if (asks_again) pause(kAskAgainInterval);
  handlers_.on_found(*chosen_->welcome());
}

// The end of a round while the link is connected. Compares the pod attempts in the generations and not the whole
// generations: the same coordinator may have two addresses, and its generation increases meanwhile.
void TcpCoordinatorLink::move_to_a_newer(const Attempt* best) {
  const bool is_newer = best != nullptr && best->welcome() != nullptr &&
                        attempt_of(best->welcome()->generation) > attempt_of(chosen_->welcome()->generation);
  const std::string where = is_newer ? text_of(best->endpoint) : "";
  const bool asks_again = !has_operators_answered() && --ask_again_left_ > 0;
  end_search();
  if (is_newer) {
    drop_chosen();
    backoff_ = std::chrono::milliseconds(0);
    return handlers_.on_lost("a newer coordinator is at " + where);
  }
  if (asks_again) pause(kAskAgainInterval);
}

// Also true when a coordinator of another job listens there.
bool TcpCoordinatorLink::has_operators_answered() const {
  return std::any_of(attempts_.begin(), attempts_.end(), [&](const auto& a) {
    const auto* const refused = a->answer ? std::get_if<Refused>(&*a->answer) : nullptr;
    return a->endpoint == *operators_ && a->answer && (refused == nullptr || !refused->retry);
  });
}

void TcpCoordinatorLink::fail_round() {
  const std::string problem = problems();
  end_search();
  seek();
  handlers_.on_problem(problem);
}

std::string TcpCoordinatorLink::problems() const {
  std::string text = name_problem_;
  for (const auto& attempt : attempts_) {
    const std::string what = attempt->problem.empty() ? "no answer" : attempt->problem;
    text += (text.empty() ? "" : "; ") + text_of(attempt->endpoint) + ": " + what;
  }
  return text;
}

// ---- the chosen connection ----

void TcpCoordinatorLink::send(const NodeMessage& message) {
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

void TcpCoordinatorLink::end_search() {
  for (const auto& attempt : attempts_) drop(*attempt);
  attempts_.clear();
  timer_.cancel();
  stage_ = Stage::kIdle;
}

void TcpCoordinatorLink::drop_chosen() {
  if (chosen_) drop(*chosen_);
  chosen_.reset();
  joined_ = false;
  refused_ = false;
}

void TcpCoordinatorLink::close() {
  end_search();
  resolver_.cancel();
  stage_ = Stage::kClosed;
  if (chosen_) chosen_->socket->close_after_sending();
}

std::string TcpCoordinatorLink::local_address() const {
  if (!chosen_) return "";
  const asio::ip::address address = plain_address(chosen_->local.address());
  return address.is_loopback() ? "" : address.to_string();
}

std::string TcpCoordinatorLink::peer() const { return chosen_ ? text_of(chosen_->endpoint) : ""; }

bool TcpCoordinatorLink::is_idle() const { return !chosen_ || chosen_->socket->unsent_bytes() == 0; }

}  // namespace lockstep
