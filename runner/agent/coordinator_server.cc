#include "runner/agent/coordinator_server.h"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <utility>

#include "runner/base/one_line.h"
#include "runner/base/open_files.h"
#include "runner/base/tcp_listener.h"

namespace lockstep {

namespace asio = boost::asio;
using boost::system::error_code;
using Tcp = asio::ip::tcp;

namespace {

// Pause after accept has failed because no file descriptors are left.
constexpr std::chrono::milliseconds kAcceptPause{200};

std::string name_of(const Tcp::endpoint& endpoint) {
  return address_text(endpoint.address()) + " (port " + std::to_string(endpoint.port()) + ")";
}

}  // namespace

CoordinatorServer::CoordinatorServer(asio::io_context& loop, const CoordinatorOptions& options, Handlers handlers)
    : loop_(loop),
      handlers_(std::move(handlers)),
      state_(options),
      acceptor_(loop),
      accept_timer_(loop),
      timer_(loop) {}

CoordinatorServer::~CoordinatorServer() {
  for (auto& [connection, peer] : unauthenticated_) peer.socket->close();
  for (auto& [connection, peer] : peers_) peer.socket->close();
}

// ---- connections ----

Status CoordinatorServer::listen(int port) {
  const error_code error = open_listener(acceptor_, port);
  if (error) {
    return Error{ErrorCode::kUnavailable, "port " + std::to_string(port) + " for the other nodes: " + error.message()};
  }
  acceptor_.non_blocking(true);
  accept();
  return {};
}

int CoordinatorServer::port() const {
  error_code error;
  const Tcp::endpoint endpoint = acceptor_.local_endpoint(error);
  return error ? 0 : endpoint.port();
}

void CoordinatorServer::accept() {
  acceptor_.async_accept([this](error_code error, Tcp::socket socket) {
    if (error == asio::error::operation_aborted) return;
    if (!error) on_accept(std::move(socket));
    if (!error || error == asio::error::connection_aborted) return accept();
    warn_rate_limited(accept_warnings_,
                      "no other node can connect: " + error.message() + open_files_hint(error.message()), now());
    accept_timer_.expires_after(kAcceptPause);
    accept_timer_.async_wait([this](error_code cancelled) {
      if (!cancelled) accept();
    });
  });
}

void CoordinatorServer::on_accept(Tcp::socket socket) {
  prepare_tcp(socket);
  error_code error;
  const Tcp::endpoint remote = socket.remote_endpoint(error);
  if (error) return;  // gone already
  const Tcp::endpoint local = socket.local_endpoint(error);
  if (error) return;
  make_room();
  const ConnectionId connection = ++last_connection_;
  Peer& peer = unauthenticated_[connection];
  peer.name = name_of(remote);
  peer.local = address_text(local.address());
  peer.since = now();
  peer.socket = std::make_shared<LineSocket>(
      loop_, LineSocket::Socket(std::move(socket)),
      LineSocket::Limits{.line_bytes_max = kGreetingBytesMax, .queue_bytes_max = kCoordinationQueueBytesMax});
  peer.socket->start({.on_line = [this, connection](const std::string& line) { on_line(connection, line); },
                      .on_closed = [this, connection](const std::string& why) { on_closed(connection, why); }});
  arm_timer();
}

void CoordinatorServer::make_room() {
  const size_t most = std::max(kUnauthenticatedMin, static_cast<size_t>(state_.options.max_nodes));
  if (unauthenticated_.size() < most) return;
  const auto oldest = unauthenticated_.begin();
  warn_rate_limited(connection_warnings_,
                    "more than " + std::to_string(most) + " connections without a greeting; closed the oldest, from " +
                        oldest->second.name,
                    now());
  oldest->second.socket->close();
  unauthenticated_.erase(oldest);
}

void CoordinatorServer::on_line(ConnectionId connection, const std::string& line) {
  const auto newcomer = unauthenticated_.find(connection);
  const bool has_greeted = newcomer == unauthenticated_.end();
  const Result<NodeMessage> message = decode_node_message(line);
  const bool is_greeting = message.ok() && std::holds_alternative<Greet>(*message);
  if (!message.ok() || is_greeting == has_greeted) {
    const std::string what = !message.ok() ? message.error().message
                             : has_greeted ? "it sent a second Greet"
                                           : "its first message is not Greet";
    (has_greeted ? peers_.at(connection) : newcomer->second).socket->close();
    return on_closed(connection, "invalid message: " + what);
  }
  if (!has_greeted) peers_.insert(unauthenticated_.extract(newcomer));
  handle(NodeSent{connection, *message});
  after_message(connection);
}

// Raises the limit for a line when the peer has greeted, and again when it has joined.
void CoordinatorServer::after_message(ConnectionId connection) {
  const auto it = peers_.find(connection);
  if (it == peers_.end() || it->second.joined) return;
  if (state_.greetings.contains(connection)) it->second.socket->set_line_bytes_max(kJoinBytesMax);
  if (!state_.rank_of.contains(connection)) return;
  it->second.joined = true;
  it->second.socket->set_line_bytes_max(kCoordinationLineBytesMax);
  if (!asio::ip::make_address(it->second.local).is_loopback()) local_address_ = it->second.local;
}

void CoordinatorServer::on_closed(ConnectionId connection, const std::string& why) {
  if (const auto newcomer = unauthenticated_.extract(connection); !newcomer.empty()) {
    return warn_rate_limited(connection_warnings_,
                             "closed a connection from " + newcomer.mapped().name + " that did not greet: " + why,
                             now());
  }
  if (peers_.erase(connection) == 0) return;
  store_.forget_connection(connection);
  handle(ConnectionEnded{connection, why});
}

void CoordinatorServer::warn_rate_limited(RateLimitedLog& log, const std::string& text, TimePoint at) {
  if (log.last && at - *log.last < kWarningInterval) {
    ++log.left_out;
    return;
  }
  log.last = at;
  const int left_out = std::exchange(log.left_out, 0);
  const std::string more = left_out == 0 ? "" : " (and " + std::to_string(left_out) + " more before it)";
  handlers_.on_note(Note{.text = one_line(text) + more, .is_warning = true});
}

// ---- members in this process ----

ConnectionId CoordinatorServer::connect(LocalHandlers handlers) {
  const ConnectionId connection = ++last_connection_;
  locals_[connection] = std::make_shared<LocalHandlers>(std::move(handlers));
  return connection;
}

void CoordinatorServer::send_from_local(ConnectionId connection, const NodeMessage& message) {
  asio::post(loop_, [this, connection, message] {
    if (locals_.contains(connection)) handle(NodeSent{connection, message});
  });
}

void CoordinatorServer::disconnect(ConnectionId connection) {
  if (locals_.erase(connection) == 0) return;
  store_.forget_connection(connection);
  asio::post(loop_, [this, connection] { handle(ConnectionEnded{connection, "the member left"}); });
}

// ---- events and outputs of the coordinator ----

void CoordinatorServer::handle(const CoordinatorEvent& event) {
  for (const CoordinatorOutput& output : step(state_, event, now())) {
    std::visit([this](const auto& o) { perform(o); }, output);
  }
  arm_timer();
}

void CoordinatorServer::perform(const Send& output) {
  if (const auto peer = peers_.find(output.connection); peer != peers_.end()) {
    return peer->second.socket->send(encode(output.message));
  }
  const auto local = locals_.find(output.connection);
  if (local == locals_.end()) return;
  asio::post(loop_, [this, connection = output.connection, handlers = local->second, message = output.message] {
    if (locals_.contains(connection)) handlers->on_message(message);
  });
}

void CoordinatorServer::perform(const Close& output) {
  store_.forget_connection(output.connection);
  if (const auto peer = peers_.find(output.connection); peer != peers_.end()) {
    peer->second.socket->close_after_sending();
    peers_.erase(peer);
    return;
  }
  const auto local = locals_.find(output.connection);
  if (local == locals_.end()) return;
  // Posted, so that it comes after messages that were posted before.
  asio::post(loop_, [this, connection = output.connection] {
    const auto it = locals_.find(connection);
    if (it == locals_.end()) return;
    const std::shared_ptr<LocalHandlers> handlers = it->second;
    locals_.erase(it);
    handlers->on_closed("the coordinator closed the connection");
  });
}

void CoordinatorServer::perform(const BeginGeneration& output) {
  encoded_values_.clear();
  answer(store_.begin_generation(output.generation));
}

void CoordinatorServer::perform(const AskStore& output) {
  answer(store_.apply({output.connection, output.local_rank}, output.request, now()));
}

void CoordinatorServer::perform(const Note& output) {
  // A refusal is not a decision about the job, so last_note_ does not change.
  if (output.is_refusal) return warn_rate_limited(refusals_, output.text, now());
  last_note_ = output.text;
  handlers_.on_note(output);
}

void CoordinatorServer::answer(std::vector<StoreAnswer> answers) {
  for (StoreAnswer& a : answers) {
    const auto peer = peers_.find(a.client.connection);
    if (peer != peers_.end() && a.reply.values.size() > 1) {
      const std::string& values = encoded(a.reply.values);
      peer->second.socket->send(encode_answer(a.client.local_rank, std::move(a.reply), values));
    } else {
      perform(Send{a.client.connection, StoreAnswerTo{.local_rank = a.client.local_rank, .reply = a.reply}});
    }
  }
}

// All nodes ask for the same addresses when a group forms.
const std::string& CoordinatorServer::encoded(const std::vector<std::string>& values) {
  const auto known = encoded_values_.find(values);
  if (known != encoded_values_.end()) return known->second;
  if (encoded_values_.size() >= kEncodedValuesMax) encoded_values_.clear();
  return encoded_values_.emplace(values, encode_values(values)).first->second;
}

// ---- time ----

void CoordinatorServer::arm_timer() {
  std::optional<TimePoint> next = state_.deadline;
  const auto consider = [&next](std::optional<TimePoint> candidate) {
    if (candidate && (!next || *candidate < *next)) next = candidate;
  };
  consider(store_.next_deadline());
  if (!unauthenticated_.empty()) consider(unauthenticated_.begin()->second.since + state_.options.heartbeat_timeout);
  if (next == armed_) return;
  armed_ = next;
  timer_.cancel();
  if (!next) return;
  timer_.expires_at(*next);
  timer_.async_wait([this](error_code error) {
    if (!error) on_timer();
  });
}

void CoordinatorServer::on_timer() {
  armed_.reset();
  const TimePoint at = now();
  while (!unauthenticated_.empty() && unauthenticated_.begin()->second.since + state_.options.heartbeat_timeout <= at) {
    const auto& [connection, peer] = *unauthenticated_.begin();
    peer.socket->close();
    on_closed(connection, "it said nothing");
  }
  answer(store_.expire(at));
  if (!state_.deadline || *state_.deadline > at) return arm_timer();
  // Posted, so that if the loop did not run for a while, messages that arrived meanwhile are handled before a node is
  // declared silent.
  asio::post(loop_, [this] { handle(CoordinatorTick{}); });
}

// ---- node 0's member ----

LocalCoordinatorLink::LocalCoordinatorLink(CoordinatorServer& server, Greet greet, Handlers handlers)
    : server_(server), greet_(std::move(greet)), handlers_(std::move(handlers)) {}

void LocalCoordinatorLink::seek() {
  close();
  connection_ = server_.connect({.on_message = [this](const CoordinatorMessage& message) { on_message(message); },
                                 .on_closed =
                                     [this](const std::string& why) {
                                       connection_ = 0;
                                       handlers_.on_lost(why);
                                     }});
  server_.send_from_local(connection_, greet_);
}

void LocalCoordinatorLink::on_message(const CoordinatorMessage& message) {
  if (const auto* const welcome = std::get_if<Welcome>(&message)) return handlers_.on_found(*welcome);
  if (const auto* const refused = std::get_if<Refused>(&message)) return handlers_.on_refused(*refused);
  handlers_.on_message(message);
}

void LocalCoordinatorLink::send(const NodeMessage& message) {
  if (connection_ != 0) server_.send_from_local(connection_, message);
}

void LocalCoordinatorLink::close() {
  if (connection_ != 0) server_.disconnect(connection_);
  connection_ = 0;
}

}  // namespace lockstep
