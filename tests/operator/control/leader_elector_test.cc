#include "operator/control/leader_elector.h"

#include <gtest/gtest.h>

#include <atomic>

#include "tests/operator/control/journal.h"
#include "tests/operator/control/memory_api_server.h"
#include "tests/operator/control/test_clock.h"

namespace lockstep::control {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

const api::ObjectKey kKey{"ns", "lock"};

// These tests are about the threads; leader_test has the rules. On the real clock a lease is so long that it does not
// run out while a thread gets no CPU; tests in which it runs out turn a clock of their own.
constexpr seconds kLeaseDuration{60};
constexpr seconds kRenewDeadline{40};
constexpr milliseconds kMoment{1};

class LeaderElectorTest : public ::testing::Test {
 protected:
  LeaderElector::Options options(const std::string& identity) {
    LeaderElector::Options result;
    result.election.identity = identity;
    result.election.lease = kKey;
    result.election.lease_duration = kLeaseDuration;
    result.election.renew_deadline = kRenewDeadline;
    result.election.retry_period = milliseconds(50);
    result.on_started = [this, identity] { journal_.write(identity + " started"); };
    result.on_stopped = [this, identity](const std::string& why) {
      journal_.write(identity + " stopped: " + why + "; lease of " + holder());
    };
    result.on_new_leader = [this, identity](const std::string& leader) {
      journal_.write(identity + " sees " + (leader.empty() ? "nobody" : leader));
    };
    return result;
  }
  std::string holder() const {
    const std::optional<Json> lease = server_->get(kube::kLeases, kKey);
    return lease ? lease_record(*lease).holder : "none";
  }
  kube::Client client(const std::string& name) { return {server_, {.user_agent = name, .retry_for = milliseconds(0)}}; }
  // The server no longer answers this client.
  void cut_off(const std::string& name) {
    server_->intercept([name](const kube::HttpRequest& request) -> std::optional<Result<kube::HttpResponse>> {
      if (request.headers.at("User-Agent") != name) return std::nullopt;
      return Error{ErrorCode::kUnavailable, "no route to host"};
    });
  }

  std::shared_ptr<MemoryApiServer> server_ = std::make_shared<MemoryApiServer>();
  Journal journal_;
};

TEST_F(LeaderElectorTest, takes_the_lease_leads_and_gives_it_back) {
  kube::Client client = this->client("a");
  LeaderElector elector(client, options("a"));
  EXPECT_FALSE(elector.is_leader());
  elector.start();
  ASSERT_TRUE(journal_.wait_for("a started"));
  EXPECT_TRUE(elector.is_leader());
  EXPECT_EQ(holder(), "a");
  elector.stop_and_join();
  EXPECT_FALSE(elector.is_leader());
  EXPECT_EQ(holder(), "");
  EXPECT_EQ(journal_.lines(), (Journal::Lines{"a sees nobody", "a sees a", "a started",
                                              "a stopped: this process stops; lease of a", "a sees nobody"}))
      << "the lease is released after on_stopped";
}

TEST_F(LeaderElectorTest, goes_on_leading_for_longer_than_the_lease_lives) {
  kube::Client client = this->client("a");
  // Each call of the clock advances it by a second, so that time stands still while the threads do. From one renewal to
  // the next there are four calls, so that 30 renewals take longer than the lease.
  std::atomic<int> looks{0};
  LeaderElector::Options hasty = options("a");
  hasty.now = [&] { return Clock::time_point(seconds(++looks)); };
  LeaderElector elector(client, hasty);
  elector.start();
  ASSERT_TRUE(journal_.wait_for("a started"));
  ASSERT_TRUE(server_->wait_until([](const MemoryApiServer& server) {
    return server.count("PUT /apis/coordination.k8s.io/v1/namespaces/ns/leases/lock") >= 30;
  }));
  EXPECT_GT(seconds(looks), kLeaseDuration);
  EXPECT_TRUE(elector.is_leader());
  EXPECT_EQ(journal_.lines().size(), 3U);
}

TEST_F(LeaderElectorTest, the_second_follows_the_first_that_gave_the_lease_back) {
  kube::Client client_a = client("a");
  kube::Client client_b = client("b");
  LeaderElector a(client_a, options("a"));
  LeaderElector b(client_b, options("b"));
  a.start();
  ASSERT_TRUE(journal_.wait_for("a started"));
  b.start();
  ASSERT_TRUE(journal_.wait_for("b sees a"));
  EXPECT_FALSE(b.is_leader());
  a.stop_and_join();
  ASSERT_TRUE(journal_.wait_for("b started"));
  EXPECT_TRUE(b.is_leader());
  EXPECT_EQ(lease_record(*server_->get(kube::kLeases, kKey)).transitions, 1);
}

TEST_F(LeaderElectorTest, a_leader_that_is_cut_off_stops_before_another_one_starts) {
  kube::Client client_a = client("a");
  kube::Client client_b = client("b");
  TestClock clock;
  LeaderElector::Options options_a = options("a");
  LeaderElector::Options options_b = options("b");
  options_a.now = options_b.now = clock.source();
  // Called once candidate b has not got the lease and waits.
  options_b.random = [this] {
    journal_.write("b waits");
    return 0.0;
  };
  const auto b_waits = [this](int times) {
    return journal_.wait_until(
        [&](const Journal::Lines& lines) { return std::count(lines.begin(), lines.end(), "b waits") == times; });
  };
  LeaderElector a(client_a, options_a);
  LeaderElector b(client_b, options_b);
  a.start();
  ASSERT_TRUE(journal_.wait_for("a started"));
  b.start();
  ASSERT_TRUE(b_waits(1));
  cut_off("a");
  clock.turn(kRenewDeadline - kMoment);
  ASSERT_TRUE(b_waits(2));
  EXPECT_EQ(holder(), "a");
  EXPECT_TRUE(a.is_leader());
  clock.turn(kMoment);
  const std::string end_of_a = "a stopped: the lease was not renewed in time; lease of a";
  ASSERT_TRUE(journal_.wait_for(end_of_a));
  clock.turn(kLeaseDuration - kRenewDeadline);
  ASSERT_TRUE(journal_.wait_for("b started"));
  EXPECT_FALSE(a.is_leader());
  const Journal::Lines lines = journal_.lines();
  const auto stopped = std::find(lines.begin(), lines.end(), end_of_a);
  const auto started = std::find(lines.begin(), lines.end(), "b started");
  EXPECT_LT(stopped, started);
}

TEST_F(LeaderElectorTest, stops_in_time_while_a_request_hangs) {
  TestClock clock;
  kube::Client client = this->client("a");
  LeaderElector::Options turned = options("a");
  turned.now = clock.source();
  LeaderElector elector(client, turned);
  elector.start();
  ASSERT_TRUE(journal_.wait_for("a started"));
  server_->hold();
  // The renewal is due, and the deadline so near that nobody waits for it on the real clock for long.
  clock.turn(kRenewDeadline - kMoment);
  ASSERT_TRUE(server_->wait_for_held(1));
  EXPECT_TRUE(elector.is_leader());
  clock.turn(kMoment);
  ASSERT_TRUE(journal_.wait_for("a stopped: the lease was not renewed in time; lease of a"));
  EXPECT_FALSE(elector.is_leader());
  EXPECT_TRUE(server_->wait_for_held(1)) << "the request is still there";
  server_->release();
  // It leads again: nobody else wanted to.
  ASSERT_TRUE(journal_.wait_until(
      [](const Journal::Lines& lines) { return std::count(lines.begin(), lines.end(), "a started") == 2; }));
}

TEST_F(LeaderElectorTest, is_no_leader_past_the_deadline_although_no_thread_ran) {
  TestClock clock;
  kube::Client client = this->client("a");
  LeaderElector::Options stopped = options("a");
  stopped.election = LeaderOptions{.identity = "a", .lease = kKey};
  stopped.now = clock.source();
  LeaderElector elector(client, stopped);
  elector.start();
  ASSERT_TRUE(journal_.wait_for("a started"));
  server_->hold();  // so that nothing is renewed from here on
  clock.turn(milliseconds(9999));
  EXPECT_TRUE(elector.is_leader());
  clock.turn(milliseconds(1));
  EXPECT_FALSE(elector.is_leader());
  server_->release();
}

TEST_F(LeaderElectorTest, waits_for_an_api_server_that_is_away) {
  cut_off("a");
  Journal said;
  kube::Client client = this->client("a");
  LeaderElector::Options with_log = options("a");
  with_log.logger = Logger({.sink = [&](const std::string& line) { said.write(line); }});
  LeaderElector elector(client, with_log);
  elector.start();
  ASSERT_TRUE(said.wait_until([](const Journal::Lines& lines) { return lines.size() >= 3; }));
  EXPECT_NE(said.lines()[0].find("the lease ns/lock could not be read"), std::string::npos) << said.lines()[0];
  EXPECT_NE(said.lines()[0].find("no route to host"), std::string::npos) << said.lines()[0];
  server_->intercept({});
  ASSERT_TRUE(journal_.wait_for("a started"));
}

TEST_F(LeaderElectorTest, many_candidates_have_one_leader_at_a_time) {
  std::atomic<int> leaders{0};
  std::atomic<int> most{0};
  std::vector<std::unique_ptr<kube::Client>> clients;
  std::vector<std::unique_ptr<LeaderElector>> electors;
  for (int i = 0; i < 5; ++i) {
    const std::string name = std::to_string(i);
    clients.push_back(
        std::make_unique<kube::Client>(server_, kube::ClientOptions{.user_agent = name, .retry_for = milliseconds(0)}));
    LeaderElector::Options counting = options(name);
    counting.on_started = [&, name] {
      most = std::max(most.load(), ++leaders);
      journal_.write(name + " started");
    };
    counting.on_stopped = [&](const std::string&) { --leaders; };
    electors.push_back(std::make_unique<LeaderElector>(*clients.back(), counting));
    electors.back()->start();
  }
  const auto begins = [](const Journal::Lines& lines) {
    return std::count_if(lines.begin(), lines.end(), [](const std::string& line) { return line.ends_with("started"); });
  };
  for (int round = 1; round <= 5; ++round) {
    ASSERT_TRUE(journal_.wait_until([&](const Journal::Lines& lines) { return begins(lines) >= round; }));
    const Journal::Lines lines = journal_.lines();
    const auto last =
        std::find_if(lines.rbegin(), lines.rend(), [](const auto& line) { return line.ends_with("started"); });
    electors[static_cast<size_t>(std::stoi(*last))]->stop_and_join();
  }
  EXPECT_EQ(most, 1);
}

TEST_F(LeaderElectorTest, one_that_was_never_started_can_be_destroyed) {
  kube::Client client = this->client("a");
  const LeaderElector elector(client, options("a"));
  EXPECT_FALSE(elector.is_leader());
}

TEST(BootTime, moves_forward) {
  const Clock::time_point first = boot_time_now();
  EXPECT_GT(first.time_since_epoch().count(), 0);
  EXPECT_GE(boot_time_now(), first);
}

}  // namespace
}  // namespace lockstep::control
