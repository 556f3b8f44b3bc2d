#include "operator/train/progress_reader.h"

#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <mutex>

namespace lockstep::train {
namespace {

const api::ObjectKey kJob{.ns = "ns", .name = "sasrec"};
const ProgressReader::Target kNode0{.pod_uid = "uid-0", .ip = "10.0.0.1", .trains = false};

// Answers as it is told, and lets the test wait for what was read.
class Agent {
 public:
  Result<std::string> read(const std::string& ip) {
    std::unique_lock lock(mutex_);
    asked_.push_back(ip);
    changed_.notify_all();
    changed_.wait(lock, [&] { return !is_held_; });
    return answer_;
  }
  void set(Result<std::string> answer) {
    const std::lock_guard lock(mutex_);
    answer_ = std::move(answer);
  }
  void hold(bool is_held) {
    const std::lock_guard lock(mutex_);
    is_held_ = is_held;
    changed_.notify_all();
  }
  void reported() {
    const std::lock_guard lock(mutex_);
    ++reports_;
    changed_.notify_all();
  }
  bool wait_for_reports(int count) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(30), [&] { return reports_ >= count; });
  }
  bool wait_until_asked(const std::string& ip) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(30),
                             [&] { return std::find(asked_.begin(), asked_.end(), ip) != asked_.end(); });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> asked_;
  Result<std::string> answer_ = std::string("{\"phase\":\"Running\",\"generation\":4294967297}");
  int reports_ = 0;
  bool is_held_ = false;
};

class ProgressReaderTest : public testing::Test {
 protected:
  Agent agent_;
  ProgressReader reader_{{.read = [this](const std::string& ip) { return agent_.read(ip); },
                          .on_report = [this](const api::ObjectKey&) { agent_.reported(); },
                          .wall = [] { return api::UnixSeconds{1000}; },
                          .threads = 2}};
};

TEST_F(ProgressReaderTest, asks_at_once_whom_it_follows_anew) {
  EXPECT_FALSE(reader_.newest(kJob).has_value());
  reader_.follow(kJob, kNode0);
  ASSERT_TRUE(agent_.wait_for_reports(1));
  const auto report = reader_.newest(kJob);
  ASSERT_TRUE(report.has_value());
  EXPECT_EQ(report->pod_uid, "uid-0");
  EXPECT_EQ(report->read_at, 1000);
  EXPECT_EQ(report->phase, "Running");
  EXPECT_EQ(report->generation, 4294967297U);
}

TEST_F(ProgressReaderTest, asks_the_successor_of_a_node_0_at_once) {
  reader_.follow(kJob, kNode0);
  ASSERT_TRUE(agent_.wait_for_reports(1));
  reader_.follow(kJob, {.pod_uid = "uid-1", .ip = "10.0.0.2"});
  ASSERT_TRUE(agent_.wait_for_reports(2));
  EXPECT_EQ(reader_.newest(kJob)->pod_uid, "uid-1");
}

TEST_F(ProgressReaderTest, keeps_the_last_words_while_nobody_is_to_be_asked) {
  reader_.follow(kJob, kNode0);
  ASSERT_TRUE(agent_.wait_for_reports(1));
  reader_.follow(kJob, {});
  EXPECT_TRUE(reader_.newest(kJob).has_value());
}

TEST_F(ProgressReaderTest, an_answer_that_is_no_report_is_none) {
  agent_.set(std::string("<html>"));
  reader_.follow(kJob, kNode0);
  ASSERT_TRUE(agent_.wait_until_asked("10.0.0.1"));
  EXPECT_FALSE(reader_.newest(kJob).has_value());
}

TEST_F(ProgressReaderTest, what_was_forgotten_while_it_was_asked_stays_forgotten) {
  agent_.hold(true);
  reader_.follow(kJob, kNode0);
  ASSERT_TRUE(agent_.wait_until_asked("10.0.0.1"));
  reader_.forget(kJob);
  agent_.hold(false);
  // The threads are free again: another job is asked.
  reader_.follow({.ns = "ns", .name = "other"}, {.pod_uid = "uid-9", .ip = "10.0.0.9"});
  ASSERT_TRUE(agent_.wait_for_reports(1));
  EXPECT_FALSE(reader_.newest(kJob).has_value());
}

TEST_F(ProgressReaderTest, an_agent_that_is_slow_holds_up_no_other_job) {
  agent_.hold(true);
  reader_.follow(kJob, kNode0);
  ASSERT_TRUE(agent_.wait_until_asked("10.0.0.1"));
  reader_.follow({.ns = "ns", .name = "other"}, {.pod_uid = "uid-9", .ip = "10.0.0.9"});
  EXPECT_TRUE(agent_.wait_until_asked("10.0.0.9"));
  agent_.hold(false);
}

// Nobody who only sees that a job makes no progress could tell why.
TEST(ProgressReader, warns_once_of_an_answer_that_it_cannot_read) {
  std::vector<std::string> lines;  // the reader's one thread writes them, and has ended when they are looked at
  Agent agent;
  {
    ProgressReader reader({.read = [&](const std::string& ip) { return agent.read(ip); },
                           .on_report = [&](const api::ObjectKey&) { agent.reported(); },
                           .threads = 1,
                           .logger = Logger({.sink = [&](const std::string& line) { lines.push_back(line); }})});
    agent.set(Error{ErrorCode::kCorrupt, "the answer has more than 1 MiB"});
    for (const char* uid : {"uid-0", "uid-1", "uid-2"}) {
      const std::string ip = std::string("10.0.0.") + uid;
      reader.follow(kJob, {.pod_uid = uid, .ip = ip});
      ASSERT_TRUE(agent.wait_until_asked(ip));
    }
    agent.set(std::string("{}"));
    reader.follow(kJob, {.pod_uid = "uid-3", .ip = "10.0.0.3"});
    ASSERT_TRUE(agent.wait_for_reports(1));
  }
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_NE(lines[0].find("\"level\":\"warning\""), std::string::npos) << lines[0];
  EXPECT_NE(lines[0].find("ns/sasrec"), std::string::npos) << lines[0];
  EXPECT_NE(lines[0].find("the answer has more than 1 MiB"), std::string::npos) << lines[0];
}

TEST(ProgressReader, ends_while_it_waits_for_the_next_time) {
  const auto begin = std::chrono::steady_clock::now();
  {
    std::atomic<int> reads{0};
    ProgressReader reader({.read = [&](const std::string&) -> Result<std::string> {
      ++reads;
      reads.notify_all();
      return Error{ErrorCode::kUnavailable, "nobody"};
    }});
    ProgressReader::Target training = kNode0;
    training.trains = true;  // the longer of the two periods
    reader.follow(kJob, training);
    reads.wait(0);
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, kReadEvery);
}

}  // namespace
}  // namespace lockstep::train
