// The coordinator's connections: server and links against each other on loopback, in one loop.
#include "runner/agent/coordinator_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <boost/asio/post.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>
#include <random>
#include <set>
#include <thread>

#include "tests/runner/agent/run_until.h"

namespace lockstep {
namespace {

namespace asio = boost::asio;
using boost::system::error_code;
using testing::HasSubstr;
using testing::Not;
using Tcp = asio::ip::tcp;

// What must be quicker than a timeout of the code gets so many attempts: a busy machine may be slow in one of them, but
// code that waits for the timeout is too slow in each.
constexpr int kAttempts = 5;

Tcp::endpoint loopback(int port) { return {asio::ip::address_v4::loopback(), static_cast<uint16_t>(port)}; }

// What a link has reported.
struct Heard {
  std::vector<Welcome> found;
  std::vector<Refused> refused;
  std::vector<CoordinatorMessage> said;
  std::vector<std::string> lost;
  std::vector<std::string> problems;

  template <typename M>
  [[nodiscard]] const M* last() const {
    for (auto it = said.rbegin(); it != said.rend(); ++it) {
      if (const auto* const message = std::get_if<M>(&*it)) return message;
    }
    return nullptr;
  }
};

CoordinatorLink::Handlers handlers_of(Heard& heard) {
  return {.on_found = [&heard](const Welcome& m) { heard.found.push_back(m); },
          .on_refused = [&heard](const Refused& m) { heard.refused.push_back(m); },
          .on_message = [&heard](const CoordinatorMessage& m) { heard.said.push_back(m); },
          .on_lost = [&heard](const std::string& why) { heard.lost.push_back(why); },
          .on_problem = [&heard](const std::string& problem) { heard.problems.push_back(problem); }};
}

// A peer that sends what it likes.
class RawPeer {
 public:
  RawPeer(asio::io_context& loop, int port) : socket_(loop) { socket_.connect(loopback(port)); }
  void send(const std::string& bytes) {
    error_code ignored;  // the server may have closed
    asio::write(socket_, asio::buffer(bytes), ignored);
  }
  void wait_for_the_end() {
    asio::async_read(socket_, asio::dynamic_buffer(received_), [this](error_code, size_t) { ended_ = true; });
  }
  [[nodiscard]] bool ended() const { return ended_; }
  [[nodiscard]] const std::string& received() const { return received_; }

 private:
  Tcp::socket socket_;
  std::string received_;
  bool ended_ = false;
};

class CoordinatorOnLoopback : public testing::Test {
 protected:
  static CoordinatorOptions options(uint32_t attempt) {
    CoordinatorOptions o;
    o.job = "job";
    o.token = "secret";
    o.attempt = attempt;
    o.max_nodes = 2;
    o.wanted_nodes = 2;
    return o;
  }

  std::unique_ptr<CoordinatorServer> serve(const CoordinatorOptions& o) {
    auto server = std::make_unique<CoordinatorServer>(
        loop_, o,
        CoordinatorServer::Handlers{
            .on_note =
                [this](const Note& note) {
                  // On a very busy machine this note is true.
                  if (note.text.find("the coordinator did not run") == std::string::npos) notes_.push_back(note.text);
                },
            .on_news = [this](const GroupNews& news) { std::visit([this](const auto& n) { keep(n); }, news); }});
    EXPECT_TRUE(server->listen(0).ok());
    return server;
  }

  void keep(const GroupBroke& news) { breaks_.push_back(news); }
  void keep(const GroupPlaced& news) { placed_.push_back(news); }
  void keep(const WorkerEndedElsewhere& news) { ends_elsewhere_.push_back(news); }
  void keep(const DecidedElsewhere& news) { decisions_elsewhere_.push_back(news); }
  void keep(const BrokenBefore& news) { broken_before_.push_back(news); }

  static Greet greet(int node_rank, uint32_t attempt = 1) {
    return Greet{.job = "job",
                 .token = "secret",
                 .node_rank = node_rank,
                 .attempt = attempt,
                 .incarnation = attempt * 100 + static_cast<uint64_t>(node_rank),
                 .host = "host"};
  }

  std::shared_ptr<TcpCoordinatorLink> link(const Greet& g, Heard& heard, const std::vector<int>& ports) {
    auto made = unconnected_link(g, heard, CoordinatorAddress().port);
    made->set_resolve(leads_to(ports));
    made->seek();
    return made;
  }

  // Another agent of node 1 is there first.
  std::shared_ptr<TcpCoordinatorLink> take_place_1(const CoordinatorServer& server, Heard& heard) {
    auto made = link(greet(1), heard, {server.port()});
    EXPECT_TRUE(until([&] { return !heard.found.empty(); }));
    made->send(Join{.nproc = 1});
    EXPECT_TRUE(until([&] { return server.state().nodes.contains(1); }));
    return made;
  }

  // A link that takes this port with an address from the operator. Its name service does not answer, and seek() has not
  // been called.
  std::shared_ptr<TcpCoordinatorLink> unconnected_link(const Greet& g, Heard& heard, int port) {
    auto made = std::make_shared<TcpCoordinatorLink>(loop_, CoordinatorAddress{.host = "nowhere.invalid", .port = port},
                                                     g, handlers_of(heard));
    made->set_resolve([this](auto) { ++questions_; });
    return made;
  }

  TcpCoordinatorLink::Resolve leads_to(const std::vector<int>& ports) {
    return [this, ports](auto done) {
      ++questions_;
      std::vector<Tcp::endpoint> endpoints;
      for (const int port : ports) endpoints.push_back(loopback(port));
      asio::post(loop_, [done, endpoints] { done({}, endpoints); });
    };
  }
  TcpCoordinatorLink::Resolve leads_nowhere() {
    return [this](auto done) {
      ++questions_;
      asio::post(loop_, [done] { done(asio::error::host_not_found, {}); });
    };
  }

  // Nobody listens there.
  int closed_port() { return Tcp::acceptor(loop_, loopback(0)).local_endpoint().port(); }

  // The coordinator in this process welcomes the link.
  bool finds(LocalCoordinatorLink& link, const Heard& heard) {
    link.seek();
    return until([&] { return heard.found.size() == 1; });
  }

  // Runs the loop until the condition holds.
  bool until(const std::function<bool()>& is_so) { return run_until(loop_, is_so); }

  static bool in_one_attempt(const std::function<bool()>& attempt) {
    for (int i = 0; i < kAttempts; ++i) {
      if (attempt()) return true;
    }
    return false;
  }

  asio::io_context loop_;
  std::vector<std::string> notes_;
  std::vector<GroupBroke> breaks_;
  std::vector<GroupPlaced> placed_;
  std::vector<WorkerEndedElsewhere> ends_elsewhere_;
  std::vector<DecidedElsewhere> decisions_elsewhere_;
  std::vector<BrokenBefore> broken_before_;
  int questions_ = 0;  // to the name service
};

TEST_F(CoordinatorOnLoopback, places_a_near_and_a_far_node_and_carries_their_store) {
  const auto server = serve(options(7));
  Heard near;
  LocalCoordinatorLink first(*server, greet(0, 7), handlers_of(near));
  ASSERT_TRUE(finds(first, near));
  first.send(Join{.nproc = 2, .generation = 0, .ready = true});
  Heard far;
  const auto second = link(greet(1), far, {server->port()});
  ASSERT_TRUE(until([&] { return far.found.size() == 1; }));
  second->send(Join{.nproc = 2, .generation = 0, .ready = true});
  ASSERT_TRUE(until([&] { return near.last<Assignment>() != nullptr && far.last<Assignment>() != nullptr; }));
  EXPECT_EQ(far.last<Assignment>()->rank, 2);
  EXPECT_EQ(far.last<Assignment>()->world_size, 4);
  EXPECT_EQ(placed_.at(0).world_size, 4);

  const uint64_t generation = far.last<Assignment>()->generation;
  EXPECT_EQ(generation, (uint64_t{7} << 32U) + 1);
  StoreRequest get{.id = 5, .generation = generation, .op = StoreOp::kGet, .keys = {"key"}};
  get.timeout = std::chrono::seconds(60);
  first.send(StoreCall{.local_rank = 1, .request = get});
  second->send(StoreCall{
      .local_rank = 0,
      .request = {.id = 6, .generation = generation, .op = StoreOp::kSet, .keys = {"key"}, .values = {"bytes\n"}}});
  ASSERT_TRUE(until([&] { return near.last<StoreAnswerTo>() != nullptr; }));
  EXPECT_EQ(near.last<StoreAnswerTo>()->local_rank, 1);
  EXPECT_EQ(near.last<StoreAnswerTo>()->reply.id, 5U);
  EXPECT_EQ(near.last<StoreAnswerTo>()->reply.values, std::vector<std::string>{"bytes\n"});

  second->close();
  ASSERT_TRUE(until([&] { return near.last<CutGroup>() != nullptr; }));
  EXPECT_EQ(breaks_.at(0).cause, "NodeLost");
  EXPECT_FALSE(server->has_connections());
}

TEST_F(CoordinatorOnLoopback, tells_what_a_worker_s_end_cost_and_who_it_was) {
  CoordinatorOptions alone = options(7);
  alone.max_nodes = alone.wanted_nodes = 1;
  const auto server = serve(alone);
  Heard heard;
  LocalCoordinatorLink first(*server, greet(0, 7), handlers_of(heard));
  ASSERT_TRUE(finds(first, heard));
  first.send(Join{.nproc = 2, .generation = 0, .ready = true});
  ASSERT_TRUE(until([&] { return heard.last<Assignment>() != nullptr; }));
  first.send(Broken{.generation = heard.last<Assignment>()->generation,
                    .rank = 1,
                    .cause = "SignalKILL",
                    .message = "",
                    .detection_seconds = 0.25});
  ASSERT_TRUE(until([&] { return !breaks_.empty(); }));
  EXPECT_EQ(breaks_.at(0).rank, 1);
  EXPECT_EQ(breaks_.at(0).cause, "SignalKILL");
  EXPECT_DOUBLE_EQ(breaks_.at(0).detection_seconds, 0.25);
  EXPECT_TRUE(breaks_.at(0).step_in_flight);
}

TEST_F(CoordinatorOnLoopback, tells_of_another_node_s_worker_even_when_its_peer_was_quicker) {
  const auto server = serve(options(7));
  Heard near;
  LocalCoordinatorLink first(*server, greet(0, 7), handlers_of(near));
  ASSERT_TRUE(finds(first, near));
  first.send(Join{.nproc = 1, .generation = 0, .ready = true});
  Heard far;
  const auto second = link(greet(1), far, {server->port()});
  ASSERT_TRUE(until([&] { return far.found.size() == 1; }));
  second->send(Join{.nproc = 1, .generation = 0, .ready = true});
  ASSERT_TRUE(until([&] { return near.last<Assignment>() != nullptr && far.last<Assignment>() != nullptr; }));
  const uint64_t generation = far.last<Assignment>()->generation;

  first.send(Broken{.generation = generation, .rank = 0, .cause = "PeerLost", .message = ""});
  ASSERT_TRUE(until([&] { return !breaks_.empty(); }));
  EXPECT_TRUE(ends_elsewhere_.empty());  // its own agent knows
  second->send(Broken{.generation = generation,
                      .rank = 1,
                      .cause = "SignalKILL",
                      .message = "rank 1 was killed",
                      .detection_seconds = 0.25,
                      .exit_code = 137});
  ASSERT_TRUE(until([&] { return !ends_elsewhere_.empty(); }));
  EXPECT_EQ(ends_elsewhere_.at(0).node, 1);
  EXPECT_EQ(ends_elsewhere_.at(0).end.exit_code, 137);
  EXPECT_EQ(ends_elsewhere_.at(0).end.message, "rank 1 was killed");
  EXPECT_TRUE(decisions_elsewhere_.empty());
  second->send(RestartDecision{.level = "process", .reason = "SignalKILL", .line = "rank 1 …; starting it again"});
  ASSERT_TRUE(until([&] { return !decisions_elsewhere_.empty(); }));
  EXPECT_EQ(decisions_elsewhere_.at(0).node, 1);
  EXPECT_EQ(decisions_elsewhere_.at(0).decision.level, "process");

  EXPECT_EQ(breaks_.at(0).cause, "PeerLost");
  ASSERT_EQ(breaks_.size(), 2U) << "the same one, with its cause";
  EXPECT_EQ(breaks_.at(1).generation, generation);
  EXPECT_EQ(breaks_.at(1).cause, "SignalKILL");
  EXPECT_EQ(breaks_.at(1).rank, 1);
  EXPECT_EQ(breaks_.at(1).detection_seconds, 0.25);
}

Join outlived(double seconds) {
  return Join{
      .nproc = 1,
      .generation = 0,
      .ready = true,
      .broken_before = {
          .seconds = seconds, .silent_seconds = 5.0, .committed_seconds = seconds + 0.5, .generation = 5, .step = 120}};
}

TEST_F(CoordinatorOnLoopback, tells_of_a_group_that_broke_before_it) {
  const auto server = serve(options(7));
  Heard far;
  const auto second = link(greet(1), far, {server->port()});
  ASSERT_TRUE(until([&] { return far.found.size() == 1; }));
  second->send(outlived(60.0));
  ASSERT_TRUE(until([&] { return !broken_before_.empty(); }));
  EXPECT_EQ(broken_before_.at(0).step, 120);
  EXPECT_EQ(broken_before_.at(0).generation, 5U);
  EXPECT_EQ(broken_before_.at(0).silent_seconds, 5.0);
}

// The report of the node that completes the group is delivered before the placement. After the first placement no
// report counts.
TEST_F(CoordinatorOnLoopback, tells_of_a_group_that_broke_before_it_ahead_of_its_first_one_and_not_later) {
  CoordinatorOptions two = options(7);
  two.max_nodes = two.wanted_nodes = 3;
  two.min_nodes = 2;
  two.rejoin_timeout = std::chrono::seconds(0);
  const auto server = serve(two);
  Heard near;
  LocalCoordinatorLink first(*server, greet(0, 7), handlers_of(near));
  ASSERT_TRUE(finds(first, near));
  first.send(Join{.nproc = 1, .generation = 0, .ready = true});
  Heard far;
  const auto second = link(greet(1), far, {server->port()});
  ASSERT_TRUE(until([&] { return far.found.size() == 1; }));
  second->send(outlived(1.0));
  ASSERT_TRUE(until([&] { return !placed_.empty(); }));
  ASSERT_EQ(broken_before_.size(), 1U);
  Heard late;
  const auto third = link(greet(2), late, {server->port()});
  ASSERT_TRUE(until([&] { return late.found.size() == 1; }));
  third->send(outlived(1.0));
  ASSERT_TRUE(until([&] { return server->state().nodes.contains(2); }));
  EXPECT_EQ(broken_before_.size(), 1U) << "this coordinator has placed a group itself and knows better";
}

// The messages of node 0's own member come through the same loop that decides whether the member is silent.
TEST_F(CoordinatorOnLoopback, counts_no_time_of_its_own_standstill_as_silence) {
  CoordinatorOptions hasty = options(7);
  hasty.max_nodes = hasty.wanted_nodes = 1;
  hasty.heartbeat_timeout = std::chrono::milliseconds(500);
  const auto server = serve(hasty);
  Heard near;
  LocalCoordinatorLink first(*server, greet(0, 7), handlers_of(near));
  ASSERT_TRUE(finds(first, near));
  first.send(Join{.nproc = 1, .generation = 0, .ready = true});
  ASSERT_TRUE(until([&] { return placed_.size() == 1; }));
  // Due before the silence is, as the agent's own timer.
  asio::steady_timer beat(loop_, std::chrono::steady_clock::now());
  int beats = 0;
  beat.async_wait([&](error_code) {
    first.send(Heartbeat{});
    ++beats;
  });
  const TimePoint heard = server->state().nodes.at(0).last_heard;
  const TimePoint look = server->state().deadline.value();
  ASSERT_GT(look, heard + hasty.heartbeat_timeout);
  while (std::chrono::steady_clock::now() < look) std::this_thread::yield();
  ASSERT_TRUE(until([&] { return beats == 1 && server->state().deadline != look; }));
  EXPECT_GT(server->state().nodes.at(0).last_heard, heard);
  EXPECT_TRUE(breaks_.empty());
}

struct Stranger {
  std::string what;
  std::function<void(Greet&)> change;
  std::string said;
};
class CoordinatorRefuses : public CoordinatorOnLoopback, public testing::WithParamInterface<Stranger> {};

TEST_P(CoordinatorRefuses, and_says_what_does_not_fit) {
  const auto server = serve(options(7));
  Greet wrong = greet(1);
  GetParam().change(wrong);
  Heard heard;
  const auto stranger = link(wrong, heard, {server->port()});
  ASSERT_TRUE(until([&] { return !heard.refused.empty(); }));
  EXPECT_THAT(heard.refused.at(0).message, HasSubstr(GetParam().said));
  EXPECT_FALSE(heard.refused.at(0).retry);
  EXPECT_TRUE(heard.found.empty());
  EXPECT_TRUE(server->state().nodes.empty());
}

INSTANTIATE_TEST_SUITE_P(Greetings, CoordinatorRefuses,
                         testing::Values(Stranger{"a_wrong_token", [](Greet& g) { g.token = "guess"; }, "TOKEN"},
                                         Stranger{"no_token", [](Greet& g) { g.token = ""; }, "TOKEN"},
                                         Stranger{"another_job", [](Greet& g) { g.job = "other"; }, "other"},
                                         Stranger{"another_protocol", [](Greet& g) { g.protocol = 999; }, "999"},
                                         Stranger{"a_node_too_many", [](Greet& g) { g.node_rank = 5; }, "5"}),
                         [](const auto& param) { return param.param.what; });

class CoordinatorCloses : public CoordinatorOnLoopback, public testing::WithParamInterface<std::string> {};

TEST_P(CoordinatorCloses, what_makes_no_sense_and_lives_on) {
  const auto server = serve(options(7));
  RawPeer stranger(loop_, server->port());
  stranger.send(GetParam());
  stranger.wait_for_the_end();
  ASSERT_TRUE(until([&] { return stranger.ended(); }));
  EXPECT_EQ(stranger.received(), "");
  ASSERT_TRUE(until([&] { return !notes_.empty(); }));
  EXPECT_THAT(notes_.at(0), HasSubstr("127.0.0.1"));
  Heard heard;
  const auto good = link(greet(1), heard, {server->port()});
  EXPECT_TRUE(until([&] { return !heard.found.empty(); }));
}

INSTANTIATE_TEST_SUITE_P(Bytes, CoordinatorCloses,
                         testing::Values("hello\n", "\n", "{}\n", "GET / HTTP/1.1\r\n\r\n",
                                         "{\"type\":\"greet\",\"protocol\":\"one\"}\n",
                                         encode(NodeMessage(Join{})) + "\n", std::string(kGreetingBytesMax + 1, 'x'),
                                         std::string(1 << 20, '\0'), "{\"type\":\"greet\",\"job\":\"\xff\xfe\"}\n"));

// Makes lines of every kind with some of their bytes changed. The tests send them in pieces of any size, as an
// unauthenticated peer and as a node that has joined.
class Garbler {
 public:
  explicit Garbler(uint32_t seed) : random_(seed) {}

  size_t below(size_t limit) { return std::uniform_int_distribution<size_t>(0, limit - 1)(random_); }
  std::string lines() {
    std::string text;
    for (size_t n = 1 + below(4); n > 0; --n) text += encode(kinds_[below(kinds_.size())]) + "\n";
    for (size_t n = below(6); n > 0; --n) {
      const size_t at = below(text.size());
      switch (below(3)) {
        case 0:
          text[at] = static_cast<char>(below(256));
          break;
        case 1:
          text.erase(at, 1 + below(40));
          break;
        default:
          text.insert(at, text.substr(below(text.size()), 1 + below(40)));
      }
      if (text.empty()) return "\n";
    }
    return text;
  }

 private:
  std::mt19937 random_;
  std::vector<NodeMessage> kinds_{
      Greet{.job = "job", .token = "secret", .node_rank = 1, .attempt = 1, .incarnation = 9, .host = "h"},
      Join{.nproc = 1, .ready = true},
      NodeReady{.ready = true},
      Broken{.generation = 1, .rank = 1, .cause = "SignalKILL", .message = "gone"},
      Heartbeat{{WorkerBeat{.step = 5}}},
      StoreCall{.request = StoreRequest{.id = 1, .op = StoreOp::kAdd, .keys = {"k"}, .values = {"v"}}},
      Leave{},
      NodeDone{},
      NodeFailed{.code = 1, .message = "no"},
      RestartDecision{.level = "process", .line = "again"},
      CheckpointNews{7}};
};

class CoordinatorOutlives : public CoordinatorOnLoopback, public testing::WithParamInterface<uint32_t> {};

TEST_P(CoordinatorOutlives, whatever_bytes_come) {
  Garbler garbler(GetParam());
  const auto server = serve(options(7));
  for (int i = 0; i < 20 && !server->state().end; ++i) {  // a node that has joined may say that it failed for good
    RawPeer peer(loop_, server->port());
    std::string bytes = garbler.lines();
    // Every second peer knows the token and joins first.
    if (i % 2 == 0) bytes.insert(0, encode(NodeMessage(greet(1))) + "\n" + encode(NodeMessage(Join{})) + "\n");
    while (!bytes.empty()) {
      const size_t size = 1 + garbler.below(bytes.size());
      peer.send(bytes.substr(0, size));
      bytes.erase(0, size);
      loop_.restart();
      loop_.poll();
    }
  }
  Heard heard;
  const auto good = link(greet(0, 9), heard, {server->port()});
  EXPECT_TRUE(until([&] { return !heard.found.empty() || server->state().end; }));
}

INSTANTIATE_TEST_SUITE_P(Seeds, CoordinatorOutlives, testing::Range(0U, 20U));

TEST_F(CoordinatorOnLoopback, a_thousand_wrong_tokens_give_one_note) {
  const auto server = serve(options(7));
  Greet wrong = greet(1);
  wrong.token = "guess";
  for (int i = 0; i < 1'000; ++i) {
    RawPeer stranger(loop_, server->port());
    stranger.send(encode(NodeMessage(wrong)) + "\n");
    stranger.wait_for_the_end();
    ASSERT_TRUE(until([&] { return stranger.ended(); }));
    ASSERT_THAT(stranger.received(), HasSubstr("TOKEN"));  // each of them is told
  }
  // On a slow machine there is also a note that nodes are waited for.
  const auto refusals = std::count_if(notes_.begin(), notes_.end(), [](const std::string& note) {
    return note.find("refused: the agent of node 1") != std::string::npos;
  });
  EXPECT_GE(refusals, 1);
  EXPECT_LT(refusals, 10);
  EXPECT_THAT(server->last_note(), Not(HasSubstr("refused")));
}

TEST_F(CoordinatorOnLoopback, a_connection_without_a_greeting_does_not_hide_a_refusal) {
  const auto server = serve(options(7));
  RawPeer(loop_, server->port()).send("hello\n");
  ASSERT_TRUE(until([&] { return notes_.size() == 1; }));
  Greet wrong = greet(1);
  wrong.token = "guess";
  Heard heard;
  const auto agent = link(wrong, heard, {server->port()});
  ASSERT_TRUE(until([&] { return notes_.size() == 2; }));
  EXPECT_THAT(notes_.at(1), HasSubstr("TOKEN"));
}

TEST_F(CoordinatorOnLoopback, an_unauthenticated_peer_cannot_forge_a_log_line) {
  const auto server = serve(options(7));
  Greet forged = greet(1);
  forged.job = "x\nlockstep: the job is complete\x1b[2J";
  Heard heard;
  const auto stranger = link(forged, heard, {server->port()});
  ASSERT_TRUE(until([&] { return !notes_.empty(); }));
  EXPECT_THAT(notes_.at(0), HasSubstr("\"x lockstep: the job is complete?[2J\""));
  RawPeer(loop_, server->port()).send("{\"type\":\"gre\\net\\u001b[2J\"}\n");
  ASSERT_TRUE(until([&] { return notes_.size() == 2; }));
  for (const std::string& note : notes_) EXPECT_EQ(note.find_first_of("\n\x1b"), std::string::npos) << note;
}

TEST_F(CoordinatorOnLoopback, trusts_nobody_with_more_than_a_join_before_a_join) {
  const auto server = serve(options(7));
  RawPeer peer(loop_, server->port());
  peer.send(encode(NodeMessage(greet(1))) + "\n" + std::string(2 * kJoinBytesMax, ' '));
  peer.wait_for_the_end();
  ASSERT_TRUE(until([&] { return peer.ended(); }));
  EXPECT_THAT(peer.received(), HasSubstr("welcome"));
}

TEST_F(CoordinatorOnLoopback, takes_a_join_with_the_terms_of_many_flags) {
  const auto server = serve(options(7));
  RawPeer peer(loop_, server->port());
  const Join join{.nproc = 1, .ready = true, .terms = std::string(2 * kGreetingBytesMax, 't')};
  peer.send(encode(NodeMessage(greet(1))) + "\n" + encode(NodeMessage(join)) + "\n");
  EXPECT_TRUE(until([&] { return server->state().nodes.contains(1); }));
}

TEST_F(CoordinatorOnLoopback, takes_a_large_line_of_a_member_but_not_a_larger_one) {
  const auto server = serve(options(7));
  RawPeer peer(loop_, server->port());
  peer.send(encode(NodeMessage(greet(1))) + "\n" + encode(NodeMessage(Join{.nproc = 1})) + "\n");
  ASSERT_TRUE(until([&] { return server->state().nodes.contains(1); }));
  const StoreRequest request{.id = 1, .op = StoreOp::kSet, .keys = {"k"}, .values = {std::string(100'000, 'v')}};
  peer.send(encode(NodeMessage(StoreCall{.local_rank = 0, .request = request})) + "\n");
  EXPECT_NE(server->state().nodes.at(1).connection, 0U);
  // A thread of its own sends, for this one must read at the same time.
  std::thread flood([&peer] { peer.send(std::string(kCoordinationLineBytesMax + 1, 'x')); });
  EXPECT_TRUE(until([&] { return server->state().nodes.at(1).connection == 0; }));
  flood.join();
}

TEST_F(CoordinatorOnLoopback, closes_a_connection_that_is_silent_for_the_heartbeat_timeout) {
  CoordinatorOptions quick = options(7);
  quick.heartbeat_timeout = std::chrono::milliseconds(50);
  const auto server = serve(quick);
  RawPeer stranger(loop_, server->port());
  stranger.wait_for_the_end();
  EXPECT_TRUE(until([&] { return stranger.ended(); }));
  EXPECT_THAT(notes_.at(0), HasSubstr("it said nothing"));
}

TEST_F(CoordinatorOnLoopback, makes_room_for_newcomers_among_silent_strangers) {
  const auto server = serve(options(7));
  std::vector<std::unique_ptr<RawPeer>> strangers;
  for (size_t i = 0; i <= kUnauthenticatedMin; ++i) {
    strangers.push_back(std::make_unique<RawPeer>(loop_, server->port()));
  }
  strangers.front()->wait_for_the_end();
  EXPECT_TRUE(until([&] { return strangers.front()->ended(); }));
  Heard heard;
  const auto good = link(greet(1), heard, {server->port()});
  EXPECT_TRUE(until([&] { return !heard.found.empty(); }));
}

TEST_F(CoordinatorOnLoopback, has_room_for_all_nodes_of_a_large_job_at_once) {
  CoordinatorOptions large = options(7);
  large.max_nodes = large.wanted_nodes = static_cast<int>(kUnauthenticatedMin) + 10;
  const auto server = serve(large);
  std::vector<std::unique_ptr<RawPeer>> silent;
  for (int i = 0; i < large.max_nodes - 1; ++i) silent.push_back(std::make_unique<RawPeer>(loop_, server->port()));
  Heard heard;
  const auto good = link(greet(1), heard, {server->port()});
  EXPECT_TRUE(until([&] { return !heard.found.empty(); }));
  EXPECT_THAT(notes_, Not(testing::Contains(HasSubstr("without a greeting"))));
}

TEST_F(CoordinatorOnLoopback, says_that_no_file_is_left_for_a_connection) {
  const auto server = serve(options(7));
  const RawPeer peer(loop_, server->port());
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const int lowest_free = ::dup(STDERR_FILENO);
  ::close(lowest_free);
  rlimit full = before;
  full.rlim_cur = static_cast<rlim_t>(lowest_free);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &full), 0);
  const bool has_said = until([&] { return !notes_.empty(); });
  ::setrlimit(RLIMIT_NOFILE, &before);
  ASSERT_TRUE(has_said);
  EXPECT_THAT(notes_.at(0), testing::AllOf(HasSubstr("no other node can connect"), HasSubstr("ulimit")));
}

TEST(SeekPause, differs_from_node_to_node_and_stays_within_the_backoff) {
  std::set<std::chrono::milliseconds> pauses;
  for (int node = 0; node < 100; ++node) {
    const auto pause = seek_pause(kSeekBackoffMax, node);
    EXPECT_GE(pause, kSeekBackoffMax / 2);
    EXPECT_LE(pause, kSeekBackoffMax);
    pauses.insert(pause);
  }
  EXPECT_GT(pauses.size(), 90U);
  EXPECT_EQ(seek_pause(std::chrono::milliseconds(0), 5), std::chrono::milliseconds(0));
}

TEST_F(CoordinatorOnLoopback, keeps_the_higher_attempt_of_two_agents_with_one_node_rank) {
  const auto server = serve(options(7));
  Heard old_heard;
  const auto old_agent = link(greet(1, 3), old_heard, {server->port()});
  ASSERT_TRUE(until([&] { return !old_heard.found.empty(); }));
  old_agent->send(Join{.nproc = 1});
  ASSERT_TRUE(until([&] { return server->state().nodes.contains(1); }));
  Heard new_heard;
  const auto new_agent = link(greet(1, 4), new_heard, {server->port()});
  ASSERT_TRUE(until([&] { return !new_heard.found.empty(); }));
  new_agent->send(Join{.nproc = 1});
  ASSERT_TRUE(until([&] { return !old_heard.refused.empty(); }));
  EXPECT_THAT(old_heard.refused.at(0).message, HasSubstr("superseded"));
  EXPECT_EQ(server->state().nodes.at(1).attempt, 4U);
}

TEST_F(CoordinatorOnLoopback, asks_less_and_less_often_for_a_place_that_stays_taken) {
  const auto server = serve(options(7));
  Heard of_present;
  const auto present = take_place_1(*server, of_present);
  Heard refused;
  std::shared_ptr<TcpCoordinatorLink> second;  // joins whoever welcomes it, and looks again when it is refused
  CoordinatorLink::Handlers handlers = handlers_of(refused);
  handlers.on_found = [&](const Welcome& welcome) {
    refused.found.push_back(welcome);
    second->send(Join{.nproc = 1});
  };
  handlers.on_refused = [&](const Refused& said) {
    refused.refused.push_back(said);
    second->seek();
  };
  Greet other = greet(1);
  ++other.incarnation;
  second = std::make_shared<TcpCoordinatorLink>(loop_, CoordinatorAddress(), other, handlers);
  second->set_resolve(leads_to({server->port()}));
  second->seek();
  loop_.run_for(std::chrono::seconds(1));
  EXPECT_LT(refused.found.size(), 20U);  // not in a hot loop
  ASSERT_TRUE(until([&] { return refused.refused.size() > 1; }));
  EXPECT_THAT(refused.refused.at(0).message, HasSubstr("there already"));
}

TEST_F(CoordinatorOnLoopback, finds_the_same_node_again_after_a_lost_connection) {
  auto server = serve(options(7));
  const int port = server->port();
  Heard heard;
  const auto node = link(greet(1), heard, {port});
  ASSERT_TRUE(until([&] { return !heard.found.empty(); }));
  node->send(Join{.nproc = 1});
  ASSERT_TRUE(until([&] { return server->state().nodes.contains(1); }));
  server.reset();
  ASSERT_TRUE(until([&] { return !heard.lost.empty(); }));
  EXPECT_EQ(node->peer(), "");
  node->seek();
  ASSERT_TRUE(until([&] { return !heard.problems.empty(); }));
  EXPECT_THAT(heard.problems.at(0), HasSubstr("Connection refused"));
  CoordinatorServer next(loop_, options(8), {.on_note = [](const Note&) {}});
  ASSERT_TRUE(next.listen(port).ok());
  ASSERT_TRUE(until([&] { return heard.found.size() == 2; }));
  EXPECT_EQ(heard.found.at(1).generation >> 32U, 8U);
}

TEST_F(CoordinatorOnLoopback, chooses_the_newest_of_several_coordinators) {
  const auto old_server = serve(options(7));
  const auto new_server = serve(options(8));
  for (const auto& ports : {std::vector<int>{old_server->port(), new_server->port()},
                            std::vector<int>{new_server->port(), old_server->port()}}) {
    Heard heard;
    std::shared_ptr<TcpCoordinatorLink> node;
    const auto finds_the_newest = [&] {  // when both answer within kOtherAnswersTimeout
      heard = Heard();
      node = link(greet(1), heard, ports);
      return until([&] { return !heard.found.empty(); }) && heard.found.at(0).generation >> 32U == 8U;
    };
    ASSERT_TRUE(in_one_attempt(finds_the_newest));
    EXPECT_THAT(node->peer(), HasSubstr(std::to_string(new_server->port())));
    EXPECT_EQ(node->local_address(), "");  // loopback is of no use to others
  }
}

TEST_F(CoordinatorOnLoopback, does_not_wait_long_for_an_address_that_is_silent) {
  const auto server = serve(options(7));
  Tcp::acceptor silent(loop_, loopback(0));
  Heard heard;
  const auto begin = std::chrono::steady_clock::now();
  const auto node = link(greet(1), heard, {silent.local_endpoint().port(), server->port()});
  ASSERT_TRUE(until([&] { return !heard.found.empty(); }));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, kConnectTimeout);
}

TEST_F(CoordinatorOnLoopback, says_that_a_name_does_not_resolve_and_tries_again) {
  const auto server = serve(options(7));
  Heard heard;
  const auto node = link(greet(1), heard, {});
  int tries = 0;
  node->set_resolve([&](auto done) {
    ++tries;
    std::vector<Tcp::endpoint> endpoints;
    error_code error;
    if (tries == 1) error = asio::error::host_not_found;
    if (tries > 1) endpoints.push_back(loopback(server->port()));
    asio::post(loop_, [done, error, endpoints] { done(error, endpoints); });
  });
  ASSERT_TRUE(until([&] { return !heard.found.empty(); }));
  EXPECT_THAT(heard.problems.at(0), HasSubstr("does not resolve"));
  EXPECT_EQ(tries, 2);
}

// ---- the address of node 0 from the operator ----

asio::ip::address host(int number) { return asio::ip::make_address("127.0.0." + std::to_string(number)); }

TEST_F(CoordinatorOnLoopback, follows_the_operator_s_address_while_the_name_service_is_silent) {
  const auto server = serve(options(7));
  for (const bool is_known_first : {true, false}) {
    Heard heard;
    const auto node = unconnected_link(greet(1), heard, server->port());
    const auto begin = std::chrono::steady_clock::now();
    if (is_known_first) node->ask_also(host(2));
    node->seek();
    const int before = questions_;
    ASSERT_TRUE(until([&] { return questions_ > before; }));
    if (!is_known_first) node->ask_also(host(2));
    ASSERT_TRUE(until([&] { return !heard.found.empty(); }));
    EXPECT_LT(std::chrono::steady_clock::now() - begin, kResolveTimeout);
    EXPECT_EQ(node->peer(), "127.0.0.2:" + std::to_string(server->port()));
    EXPECT_TRUE(heard.problems.empty());
  }
}

TEST_F(CoordinatorOnLoopback, follows_the_operator_s_address_at_once_if_the_name_does_not_resolve) {
  const auto server = serve(options(7));
  Heard heard;
  const auto node = unconnected_link(greet(1), heard, server->port());
  node->set_resolve(leads_nowhere());
  node->seek();
  ASSERT_TRUE(until([&] { return heard.problems.size() == 4; }));  // it waits before the fifth round
  const int before = questions_;
  node->ask_also(asio::ip::make_address("::ffff:127.0.0.2"));
  EXPECT_EQ(questions_, before + 1);
  ASSERT_TRUE(until([&] { return !heard.found.empty(); }));
  EXPECT_EQ(questions_, before + 1);
  EXPECT_EQ(heard.problems.size(), 4U);
  EXPECT_EQ(node->peer(), "127.0.0.2:" + std::to_string(server->port()));
}

TEST_F(CoordinatorOnLoopback, tries_the_operator_s_address_again_until_node_0_listens_there) {
  const int port = closed_port();
  Heard heard;
  const auto node = unconnected_link(greet(1), heard, port);
  const auto begin = std::chrono::steady_clock::now();
  node->ask_also(host(1));
  node->seek();
  loop_.run_for(std::chrono::milliseconds(60));
  CoordinatorServer server(loop_, options(7), {.on_note = [](const Note&) {}});
  ASSERT_TRUE(server.listen(port).ok());
  ASSERT_TRUE(until([&] { return !heard.found.empty(); }));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, kResolveTimeout);
}

TEST_F(CoordinatorOnLoopback, ends_a_round_without_a_slow_name_service_when_the_operator_s_address_is_known) {
  const auto server = serve(options(7));
  Heard heard;
  std::function<void(error_code, std::vector<Tcp::endpoint>)> answer;
  const auto node = unconnected_link(greet(1), heard, closed_port());
  node->set_resolve([&](auto done) {
    ++questions_;
    answer = done;
  });
  node->ask_also(host(1));
  node->seek();
  ASSERT_TRUE(until([&] { return !heard.problems.empty(); }));
  EXPECT_THAT(heard.problems.at(0), HasSubstr("the name service does not answer; 127.0.0.1:"));
  answer({}, {loopback(server->port())});  // between two rounds, so it is asked again
  ASSERT_TRUE(until([&] { return questions_ == 2; }));
  answer({}, {loopback(server->port())});
  ASSERT_TRUE(until([&] { return !heard.found.empty(); }));
}

TEST_F(CoordinatorOnLoopback, reports_the_errors_of_the_name_and_of_the_operator_s_address) {
  Heard heard;
  const auto node = unconnected_link(greet(1), heard, closed_port());
  node->set_resolve(leads_nowhere());
  node->ask_also(host(2));
  node->seek();
  ASSERT_TRUE(until([&] { return !heard.problems.empty(); }));
  EXPECT_THAT(heard.problems.at(0), HasSubstr("the name does not resolve"));
  EXPECT_THAT(heard.problems.at(0), HasSubstr("; 127.0.0.2:"));
}

TEST_F(CoordinatorOnLoopback, finds_node_0_by_name_if_it_is_not_at_the_operator_s_address) {
  const auto server = serve(options(8));
  Tcp::acceptor silent(loop_, loopback(0));
  for (const int stale_port : {closed_port(), static_cast<int>(silent.local_endpoint().port())}) {
    Heard heard;
    const auto node = unconnected_link(greet(1), heard, stale_port);
    node->set_resolve(leads_to({server->port()}));
    node->ask_also(host(1));
    node->seek();
    ASSERT_TRUE(until([&] { return !heard.found.empty(); }));
    EXPECT_THAT(node->peer(), HasSubstr(std::to_string(server->port())));
  }
}

TEST_F(CoordinatorOnLoopback, chooses_the_newest_coordinator_wherever_its_address_comes_from) {
  const auto old_server = serve(options(7));
  const auto new_server = serve(options(8));
  for (const bool is_newer_by_name : {true, false}) {
    Heard heard;
    std::shared_ptr<TcpCoordinatorLink> node;
    const auto finds_the_newest = [&] {  // when both answer within kOtherAnswersTimeout
      heard = Heard();
      node = unconnected_link(greet(1), heard, (is_newer_by_name ? old_server : new_server)->port());
      node->set_resolve(leads_to({(is_newer_by_name ? new_server : old_server)->port()}));
      node->ask_also(host(2));
      node->seek();
      return until([&] { return !heard.found.empty(); }) && heard.found.at(0).generation >> 32U == 8U;
    };
    EXPECT_TRUE(in_one_attempt(finds_the_newest));
  }
}

TEST_F(CoordinatorOnLoopback, a_refusal_of_another_job_at_the_operator_s_address_does_not_decide) {
  CoordinatorOptions other = options(7);
  other.job = "other";
  const auto stranger = serve(other);
  const auto server = serve(options(8));
  Heard heard;
  const auto node = unconnected_link(greet(1), heard, stranger->port());
  node->set_resolve(leads_nowhere());
  node->ask_also(host(2));
  node->seek();
  ASSERT_TRUE(until([&] { return !heard.refused.empty(); }));
  EXPECT_TRUE(heard.refused.at(0).retry);
  node->set_resolve(leads_to({server->port()}));
  node->seek();
  ASSERT_TRUE(until([&] { return !heard.found.empty(); }));
  node->ask_also(host(1));
  // When the name leads there too, it is the job's own coordinator that refuses.
  Heard refused;
  const auto misled = unconnected_link(greet(1), refused, stranger->port());
  misled->set_resolve(leads_to({stranger->port()}));
  misled->ask_also(host(1));
  misled->seek();
  ASSERT_TRUE(until([&] { return !refused.refused.empty(); }));
  EXPECT_FALSE(refused.refused.at(0).retry);
}

// A node that is connected to `at`, hears from the operator of 127.0.0.2, port `port`, and greets who answers there.
class ConnectedElsewhere : public CoordinatorOnLoopback {
 protected:
  void connect_elsewhere(CoordinatorServer& at, int port) {
    node_ = unconnected_link(greet(1), heard_, port);
    node_->set_resolve(leads_to({at.port()}));
    node_->seek();
    ASSERT_TRUE(until([&] { return heard_.found.size() == 1; }));
    node_->send(Join{.nproc = 1, .generation = heard_.found.at(0).generation, .ready = true});
    ASSERT_TRUE(until([&] { return at.state().nodes.contains(1); }));
    peer_ = node_->peer();
    node_->ask_also(host(2));
  }
  void expect_no_change() {
    EXPECT_TRUE(heard_.lost.empty());
    EXPECT_EQ(node_->peer(), peer_);
    EXPECT_EQ(heard_.found.size(), 1U);
  }

  Heard heard_;
  std::shared_ptr<TcpCoordinatorLink> node_;
  std::string peer_;
};

TEST_F(ConnectedElsewhere, moves_to_a_newer_coordinator) {
  const auto old_server = serve(options(7));
  const auto new_server = serve(options(8));
  connect_elsewhere(*old_server, new_server->port());
  ASSERT_TRUE(until([&] { return !heard_.lost.empty(); }));
  EXPECT_EQ(heard_.lost.at(0), "a newer coordinator is at 127.0.0.2:" + std::to_string(new_server->port()));
  EXPECT_EQ(node_->peer(), "");
  node_->seek();
  ASSERT_TRUE(until([&] { return heard_.found.size() == 2; }));
  EXPECT_EQ(heard_.found.at(1).generation >> 32U, 8U);
  EXPECT_EQ(node_->peer(), "127.0.0.2:" + std::to_string(new_server->port()));
}

TEST_F(ConnectedElsewhere, moves_to_a_newer_coordinator_that_listens_later) {
  const auto old_server = serve(options(7));
  const int port = closed_port();
  connect_elsewhere(*old_server, port);
  loop_.run_for(std::chrono::milliseconds(20));
  CoordinatorServer new_server(loop_, options(8), {.on_note = [](const Note&) {}});
  ASSERT_TRUE(new_server.listen(port).ok());
  ASSERT_TRUE(until([&] { return !heard_.lost.empty(); }));
}

TEST_F(ConnectedElsewhere, stays_when_an_older_one_answers_there) {
  const auto server = serve(options(7));
  const auto older = serve(options(6));
  connect_elsewhere(*server, older->port());
  ASSERT_TRUE(until([&] { return older->has_connections(); }));
  ASSERT_TRUE(until([&] { return !older->has_connections(); }));
  expect_no_change();
  // In the next round the older coordinator is not chosen either.
  node_->seek();
  ASSERT_TRUE(until([&] { return heard_.found.size() == 2; }));
  EXPECT_EQ(heard_.found.at(1).generation >> 32U, 7U);
}

TEST_F(ConnectedElsewhere, stays_when_the_same_one_answers_there_with_a_later_generation) {
  const auto server = serve(options(7));
  Heard near;
  LocalCoordinatorLink first(*server, greet(0, 7), handlers_of(near));
  ASSERT_TRUE(finds(first, near));
  first.send(Join{.nproc = 1, .generation = 0, .ready = true});
  connect_elsewhere(*server, server->port());
  ASSERT_TRUE(until([&] { return heard_.last<Assignment>() != nullptr; }));
  node_->ask_also(host(3));
  loop_.run_for(std::chrono::milliseconds(100));
  expect_no_change();
  EXPECT_TRUE(breaks_.empty());
}

TEST_F(ConnectedElsewhere, stays_when_it_is_connected_there_already) {
  const auto server = serve(options(7));
  connect_elsewhere(*server, closed_port());
  Heard heard;
  const auto other = unconnected_link(greet(1, 2), heard, server->port());
  other->ask_also(host(1));
  other->seek();
  ASSERT_TRUE(until([&] { return !heard.found.empty(); }));
  other->ask_also(host(1));
  loop_.run_for(std::chrono::milliseconds(50));
  EXPECT_EQ(heard.found.size(), 1U);
  EXPECT_TRUE(heard.lost.empty());
}

TEST_F(ConnectedElsewhere, stays_when_a_stranger_answers_there) {
  const auto server = serve(options(7));
  CoordinatorOptions other = options(9);
  other.job = "other";
  const auto stranger = serve(other);
  connect_elsewhere(*server, stranger->port());
  ASSERT_TRUE(until([&] { return stranger->has_connections(); }));
  ASSERT_TRUE(until([&] { return !stranger->has_connections(); }));
  expect_no_change();
}

TEST_F(ConnectedElsewhere, seeks_by_name_when_the_connection_ends_while_the_other_address_is_silent) {
  auto server = serve(options(7));
  const int port = server->port();
  Tcp::acceptor silent(loop_, loopback(0));
  connect_elsewhere(*server, silent.local_endpoint().port());
  server.reset();
  ASSERT_TRUE(until([&] { return !heard_.lost.empty(); }));
  node_->seek();
  CoordinatorServer next(loop_, options(8), {.on_note = [](const Note&) {}});
  ASSERT_TRUE(next.listen(port).ok());
  ASSERT_TRUE(until([&] { return heard_.found.size() == 2; }));
}

TEST_F(CoordinatorOnLoopback, names_the_port_that_is_taken) {
  const auto server = serve(options(7));
  CoordinatorServer second(loop_, options(7), {});
  const Status taken = second.listen(server->port());
  ASSERT_FALSE(taken.ok());
  EXPECT_THAT(taken.error().message, HasSubstr("port " + std::to_string(server->port()) + " for the other nodes"));
}

TEST(ChooseAnswer, prefers_the_newest_welcome_then_a_refusal_that_may_be_lifted) {
  const GreetingAnswer old_one = Welcome{5};
  const GreetingAnswer new_one = Welcome{6};
  const GreetingAnswer not_yet = Refused{"not yet", true};
  const GreetingAnswer never = Refused{"never", false};
  EXPECT_EQ(choose_answer({old_one, new_one}), 1U);
  EXPECT_EQ(choose_answer({new_one, old_one}), 0U);
  EXPECT_EQ(choose_answer({never, not_yet, old_one}), 2U);
  EXPECT_EQ(choose_answer({never, not_yet}), 1U);
  EXPECT_EQ(choose_answer({never}), 0U);
}

}  // namespace
}  // namespace lockstep
