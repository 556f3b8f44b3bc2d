#include "operator/train/coordinator_announcer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <map>
#include <mutex>
#include <set>

namespace lockstep::train {
namespace {

const api::ObjectKey kJob{.ns = "ns", .name = "sasrec"};
const api::ObjectKey kOtherJob{.ns = "ns", .name = "other"};

constexpr int kPort = 8181;

// Pods named by their addresses, to which the address of pod 0 is sent.
CoordinatorNews news(const std::string& address, const std::vector<std::string>& ips) {
  CoordinatorNews made{.address = address, .token = "secret", .port = kPort, .pods = {}};
  for (const std::string& ip : ips) made.pods.push_back({.uid = "uid-" + ip, .ip = ip});
  return made;
}

// Answers as the test sets it, and lets the test wait for what was sent.
class Agents {
 public:
  Status receive(const std::string& ip, int port, const std::string& token, const std::string& address) {
    std::unique_lock lock(mutex_);
    EXPECT_EQ(port, kPort);
    EXPECT_EQ(token, "secret");
    EXPECT_TRUE(busy_.insert(ip).second) << ip << " gets two requests at a time";
    ++told_[ip + " " + address];
    ++told_[ip];
    changed_.notify_all();
    changed_.wait(lock, [&] { return !held_.contains(ip); });
    busy_.erase(ip);
    int& failures = failures_[ip];
    if (failures == 0) return {};
    --failures;
    return Error{ErrorCode::kUnavailable, "nobody listens"};
  }
  void fail(const std::string& ip, int times) {
    const std::lock_guard lock(mutex_);
    failures_[ip] = times;
  }
  void hold(const std::string& ip) {
    const std::lock_guard lock(mutex_);
    held_.insert(ip);
  }
  void release(const std::string& ip) {
    const std::lock_guard lock(mutex_);
    held_.erase(ip);
    changed_.notify_all();
  }
  // "10.0.0.1", or "10.0.0.1 10.9.9.9": of that address.
  bool wait_until_received(const std::string& what, int times = 1) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(30), [&] { return told_[what] >= times; });
  }
  int received(const std::string& what) {
    const std::lock_guard lock(mutex_);
    return told_[what];
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, int> told_;
  std::map<std::string, int> failures_;
  std::set<std::string> held_;
  std::set<std::string> busy_;
};

class Lines {
 public:
  void add(const std::string& line) {
    const std::lock_guard lock(mutex_);
    lines_.push_back(line);
  }
  std::vector<std::string> all() {
    const std::lock_guard lock(mutex_);
    return lines_;
  }

 private:
  std::mutex mutex_;
  std::vector<std::string> lines_;
};

class CoordinatorAnnouncerTest : public testing::Test {
 protected:
  // Waits until everything announced before has been sent: one thread sends what is due in order.
  void pass(const std::string& ip = "10.0.0.99") {
    announcer_.announce(kOtherJob, news("10.9.9.9", {ip}));
    ASSERT_TRUE(agents_.wait_until_received(ip));
  }

  Agents agents_;
  Lines warnings_;
  CoordinatorAnnouncer announcer_{
      {.send = [this](const std::string& ip, int port, const std::string& token,
                      const std::string& address) { return agents_.receive(ip, port, token, address); },
       .threads = 1,
       .logger = Logger({.lowest = LogLevel::kWarning,
                         .sink = [this](const std::string& line) { warnings_.add(line); },
                         .now = [] { return std::string("now"); }})}};
};

TEST_F(CoordinatorAnnouncerTest, tells_every_pod_once) {
  for (int pass = 0; pass < 3; ++pass) announcer_.announce(kJob, news("10.0.0.1", {"10.0.0.2", "10.0.0.3"}));
  ASSERT_TRUE(agents_.wait_until_received("10.0.0.2 10.0.0.1"));
  ASSERT_TRUE(agents_.wait_until_received("10.0.0.3 10.0.0.1"));
  announcer_.announce(kJob, news("10.0.0.1", {"10.0.0.2", "10.0.0.3", "10.0.0.4"}));
  ASSERT_TRUE(agents_.wait_until_received("10.0.0.4 10.0.0.1"));
  pass();
  EXPECT_EQ(agents_.received("10.0.0.2"), 1);
  EXPECT_EQ(agents_.received("10.0.0.3"), 1);
}

TEST_F(CoordinatorAnnouncerTest, tells_everybody_of_another_address) {
  announcer_.announce(kJob, news("10.0.0.1", {"10.0.0.2", "10.0.0.3"}));
  ASSERT_TRUE(agents_.wait_until_received("10.0.0.3"));
  announcer_.announce(kJob, news("10.0.0.7", {"10.0.0.2", "10.0.0.3"}));
  EXPECT_TRUE(agents_.wait_until_received("10.0.0.2 10.0.0.7"));
  EXPECT_TRUE(agents_.wait_until_received("10.0.0.3 10.0.0.7"));
}

TEST_F(CoordinatorAnnouncerTest, retries_until_the_agent_answers) {
  agents_.fail("10.0.0.2", 2);
  announcer_.announce(kJob, news("10.0.0.1", {"10.0.0.2"}));
  ASSERT_TRUE(agents_.wait_until_received("10.0.0.2", 3));
  pass();
  EXPECT_EQ(agents_.received("10.0.0.2"), 3);
  EXPECT_TRUE(warnings_.all().empty());
}

TEST_F(CoordinatorAnnouncerTest, warns_once_of_who_never_listens) {
  agents_.fail("10.0.0.2", 1000);
  announcer_.announce(kJob, news("10.0.0.1", {"10.0.0.2"}));
  ASSERT_TRUE(agents_.wait_until_received("10.0.0.2", kFailuresBeforeWarning + 1));
  ASSERT_EQ(warnings_.all().size(), 1U);
  EXPECT_NE(warnings_.all()[0].find("nobody listens"), std::string::npos) << warnings_.all()[0];
}

TEST_F(CoordinatorAnnouncerTest, a_new_address_does_not_wait_for_the_next_try_of_the_old_one) {
  agents_.fail("10.0.0.2", 4);  // the fifth try would be 1.6 s later
  announcer_.announce(kJob, news("10.0.0.1", {"10.0.0.2"}));
  ASSERT_TRUE(agents_.wait_until_received("10.0.0.2", 4));
  pass("10.0.0.98");  // the fourth try has ended
  announcer_.announce(kJob, news("10.0.0.7", {"10.0.0.2"}));
  pass();  // after agents that were due before, and before agents that wait for another try
  EXPECT_EQ(agents_.received("10.0.0.2 10.0.0.7"), 1);
}

TEST_F(CoordinatorAnnouncerTest, resends_if_the_address_changes_during_a_request) {
  agents_.hold("10.0.0.2");
  announcer_.announce(kJob, news("10.0.0.1", {"10.0.0.2"}));
  ASSERT_TRUE(agents_.wait_until_received("10.0.0.2 10.0.0.1"));
  announcer_.announce(kJob, {});  // pod 0 is away
  announcer_.announce(kJob, news("10.0.0.7", {"10.0.0.2"}));
  agents_.release("10.0.0.2");
  EXPECT_TRUE(agents_.wait_until_received("10.0.0.2 10.0.0.7"));
  pass();
  EXPECT_EQ(agents_.received("10.0.0.2"), 2);
}

TEST_F(CoordinatorAnnouncerTest, nothing_more_is_sent_to_a_pod_that_went_meanwhile) {
  for (const bool is_whole_job_gone : {false, true}) {
    const std::string ip = is_whole_job_gone ? "10.0.0.2" : "10.0.0.3";
    agents_.hold(ip);
    agents_.fail(ip, 1000);
    announcer_.announce(kJob, news("10.0.0.1", {ip}));
    ASSERT_TRUE(agents_.wait_until_received(ip));
    if (is_whole_job_gone) {
      announcer_.forget(kJob);
    } else {
      announcer_.announce(kJob, {});
    }
    agents_.release(ip);
    pass(ip + "9");
    EXPECT_EQ(agents_.received(ip), 1);
  }
}

TEST_F(CoordinatorAnnouncerTest, a_pod_that_went_before_its_turn_is_not_told) {
  agents_.hold("10.0.0.2");
  announcer_.announce(kOtherJob, news("10.0.0.1", {"10.0.0.2"}));
  ASSERT_TRUE(agents_.wait_until_received("10.0.0.2"));
  announcer_.announce(kJob, news("10.0.0.1", {"10.0.0.3", "10.0.0.4"}));
  announcer_.announce(kJob, news("10.0.0.1", {"10.0.0.4"}));
  agents_.release("10.0.0.2");
  ASSERT_TRUE(agents_.wait_until_received("10.0.0.4"));
  EXPECT_EQ(agents_.received("10.0.0.3"), 0);
}

TEST_F(CoordinatorAnnouncerTest, unresponsive_agents_are_tried_after_new_ones) {
  std::vector<std::string> deaf;
  for (int i = 0; i < 50; ++i) {
    deaf.push_back("10.1.0." + std::to_string(i));
    agents_.fail(deaf.back(), 1000);
  }
  announcer_.announce(kJob, news("10.0.0.1", deaf));
  ASSERT_TRUE(agents_.wait_until_received(deaf.back()));
  // The first agent is slow to answer its next try; meanwhile the others get their turns.
  agents_.hold(deaf[0]);
  agents_.hold("10.0.0.2");
  ASSERT_TRUE(agents_.wait_until_received(deaf[0], agents_.received(deaf[0]) + 1));
  announcer_.announce(kOtherJob, news("10.0.0.1", {"10.0.0.2"}));
  std::map<std::string, int> before;
  for (const std::string& ip : deaf) before[ip] = agents_.received(ip);
  agents_.release(deaf[0]);
  ASSERT_TRUE(agents_.wait_until_received("10.0.0.2"));
  for (const std::string& ip : deaf) EXPECT_EQ(agents_.received(ip), before[ip]) << ip;
  agents_.release("10.0.0.2");
}

TEST(CoordinatorAnnouncer, tells_ten_thousand_pods) {
  constexpr int kPods = 10'000;
  std::mutex mutex;
  std::condition_variable changed;
  std::set<std::string> sent_to;
  CoordinatorAnnouncer announcer(
      {.send = [&](const std::string& ip, int, const std::string&, const std::string&) -> Status {
        const std::lock_guard lock(mutex);
        sent_to.insert(ip);
        changed.notify_all();
        return {};
      }});
  std::vector<std::string> ips;
  for (int i = 0; i < kPods; ++i) ips.push_back("ip-" + std::to_string(i));
  const CoordinatorNews all = news("10.0.0.1", ips);
  for (int pass = 0; pass < 10; ++pass) announcer.announce(kJob, all);
  std::unique_lock lock(mutex);
  EXPECT_TRUE(changed.wait_for(lock, std::chrono::seconds(30), [&] { return sent_to.size() == kPods; }))
      << sent_to.size();
}

TEST(CoordinatorAnnouncer, ends_while_it_waits_for_the_next_try) {
  std::atomic<int> sent_to{0};
  const auto begin = std::chrono::steady_clock::now();
  {
    CoordinatorAnnouncer announcer(
        {.send = [&](const std::string&, int, const std::string&, const std::string&) -> Status {
          ++sent_to;
          sent_to.notify_all();
          return Error{ErrorCode::kUnavailable, "nobody"};
        }});
    announcer.announce(kJob, news("10.0.0.1", {"10.0.0.2"}));
    sent_to.wait(0);
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, kResendMax);
}

}  // namespace
}  // namespace lockstep::train
