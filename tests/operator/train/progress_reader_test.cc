#include "operator/train/progress_reader.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>

namespace lockstep::train {
namespace {

const api::ObjectKey kJob{.ns = "ns", .name = "sasrec"};
const ProgressReader::Target kPod0{
    .job_uid = "job-1", .num_nodes = 2, .pod_uid = "uid-0", .ip = "10.0.0.1", .trains = false};

// Answers as the test sets it, and lets the test wait for what was read.
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
  bool wait_for_requests(size_t count) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(30), [&] { return asked_.size() >= count; });
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
  ProgressReader reader_{{.read = [this](const std::string& ip, int) { return agent_.read(ip); },
                          .on_report = [this](const api::ObjectKey&) { agent_.reported(); },
                          .wall = [] { return api::UnixSeconds{1000}; },
                          .threads = 2}};
};

TEST_F(ProgressReaderTest, asks_at_once_whom_it_follows_anew) {
  EXPECT_FALSE(reader_.newest(kJob).has_value());
  reader_.follow(kJob, kPod0);
  ASSERT_TRUE(agent_.wait_for_reports(1));
  const auto report = reader_.newest(kJob);
  ASSERT_TRUE(report.has_value());
  EXPECT_EQ(report->pod_uid, "uid-0");
  EXPECT_EQ(report->read_at, 1000);
  EXPECT_EQ(report->phase, "Running");
  EXPECT_EQ(report->generation, 4294967297U);
}

TEST_F(ProgressReaderTest, asks_the_successor_of_pod_0_at_once) {
  reader_.follow(kJob, kPod0);
  ASSERT_TRUE(agent_.wait_for_reports(1));
  reader_.follow(kJob, {.pod_uid = "uid-1", .ip = "10.0.0.2"});
  ASSERT_TRUE(agent_.wait_for_reports(2));
  EXPECT_EQ(reader_.newest(kJob)->pod_uid, "uid-1");
}

TEST_F(ProgressReaderTest, keeps_the_last_words_while_nobody_is_to_be_asked) {
  reader_.follow(kJob, kPod0);
  ASSERT_TRUE(agent_.wait_for_reports(1));
  reader_.follow(kJob, {});
  EXPECT_TRUE(reader_.newest(kJob).has_value());
}

TEST_F(ProgressReaderTest, an_answer_that_is_no_report_is_ignored) {
  agent_.set(std::string("<html>"));
  reader_.follow(kJob, kPod0);
  ASSERT_TRUE(agent_.wait_until_asked("10.0.0.1"));
  EXPECT_FALSE(reader_.newest(kJob).has_value());
}

TEST_F(ProgressReaderTest, an_agent_of_another_job_that_got_the_address_is_not_believed) {
  agent_.set(std::string(R"({"job":"gpt2rec","phase":"Failed"})"));
  reader_.follow(kJob, kPod0);
  ASSERT_TRUE(agent_.wait_until_asked("10.0.0.1"));
  agent_.set(std::string(R"({"job":"sasrec","phase":"Running"})"));
  reader_.follow(kJob, {.pod_uid = "uid-1", .ip = "10.0.0.2"});
  ASSERT_TRUE(agent_.wait_for_reports(1));
  EXPECT_EQ(reader_.newest(kJob)->phase, "Running");
}

// A pod of another job may have the address of one that ended a moment ago, and jobs of two namespaces one name.
TEST_F(ProgressReaderTest, an_agent_of_a_namesake_is_not_believed) {
  int number = 0;
  for (const char* foreign : {R"({"job":"sasrec","namespace":"ns","jobUid":"job-2","phase":"Failed"})",
                              R"({"job":"sasrec","namespace":"other","jobUid":"job-1","phase":"Failed"})",
                              R"({"job":"sasrec","namespace":"other","phase":"Failed"})", R"({"jobUid":"job-2"})"}) {
    const std::string uid = std::to_string(++number);
    agent_.set(std::string(foreign));
    reader_.follow(kJob, {.job_uid = "job-1", .pod_uid = "foreign-" + uid, .ip = "10.0.1." + uid});
    ASSERT_TRUE(agent_.wait_until_asked("10.0.1." + uid));
    agent_.set(std::string(R"({"job":"sasrec","namespace":"ns","jobUid":"job-1","phase":"Running"})"));
    reader_.follow(kJob, {.job_uid = "job-1", .pod_uid = "ours-" + uid, .ip = "10.0.0." + uid});
    ASSERT_TRUE(agent_.wait_for_reports(number)) << foreign;
    EXPECT_EQ(reader_.newest(kJob)->phase, "Running") << foreign;
    EXPECT_EQ(reader_.newest(kJob)->pod_uid, "ours-" + uid) << foreign;
  }
}

// Images of earlier releases say the job's name alone.
TEST_F(ProgressReaderTest, of_two_namesakes_with_one_address_an_agent_without_uid_is_not_believed) {
  const api::ObjectKey other{.ns = "other", .name = "sasrec"};
  agent_.set(std::string(R"({"job":"sasrec","phase":"Running"})"));
  reader_.follow(other, {.job_uid = "job-2", .pod_uid = "uid-2", .ip = "10.0.0.2"});
  ASSERT_TRUE(agent_.wait_for_reports(1));
  agent_.hold(true);
  reader_.follow(kJob, {.job_uid = "job-1", .pod_uid = "uid-1", .ip = "10.0.0.1"});
  ASSERT_TRUE(agent_.wait_until_asked("10.0.0.1"));
  reader_.follow(other, {.job_uid = "job-2", .pod_uid = "uid-3", .ip = "10.0.0.1"});
  ASSERT_TRUE(agent_.wait_for_requests(3));
  agent_.hold(false);
  reader_.follow({.ns = "ns", .name = "third"}, {.job_uid = "job-3", .pod_uid = "uid-9", .ip = "10.0.0.9"});
  ASSERT_TRUE(agent_.wait_until_asked("10.0.0.9"));
  EXPECT_FALSE(reader_.newest(kJob).has_value());
  EXPECT_EQ(reader_.newest(other)->pod_uid, "uid-2") << "what it said at its own address stays known";
}

TEST_F(ProgressReaderTest, what_was_forgotten_while_it_was_asked_stays_forgotten) {
  agent_.hold(true);
  reader_.follow(kJob, kPod0);
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
  reader_.follow(kJob, kPod0);
  ASSERT_TRUE(agent_.wait_until_asked("10.0.0.1"));
  reader_.follow({.ns = "ns", .name = "other"}, {.pod_uid = "uid-9", .ip = "10.0.0.9"});
  EXPECT_TRUE(agent_.wait_until_asked("10.0.0.9"));
  agent_.hold(false);
}

// Without the warning a user would see that the job reports no progress, and not why.
TEST(ProgressReader, warns_once_of_an_answer_that_it_cannot_read) {
  std::vector<std::string> lines;  // the reader's one thread writes them, and has ended when they are looked at
  Agent agent;
  {
    ProgressReader reader({.read = [&](const std::string& ip, int) { return agent.read(ip); },
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

TEST(ProgressReader, asks_a_job_that_does_not_answer_after_twice_as_long_each_time) {
  using std::chrono::seconds;
  EXPECT_EQ(read_period({}), kReadEveryWhileStarting);
  EXPECT_EQ(read_period({.trains = true}), kReadEvery);
  EXPECT_EQ(read_period({.failures = 1}), seconds(4));
  EXPECT_EQ(read_period({.failures = 5}), seconds(64));
  EXPECT_EQ(read_period({.trains = true, .failures = 4}), seconds(160));
  for (const int failures : {8, 40, 1'000'000})
    EXPECT_EQ(read_period({.trains = true, .failures = failures}), kReadEveryMax);
}

TEST(ProgressReader, asks_a_starting_job_less_often_while_its_answers_repeat_themselves) {
  using std::chrono::seconds;
  EXPECT_EQ(read_period({.repetitions = 1}), seconds(4));
  EXPECT_EQ(read_period({.repetitions = 2}), seconds(8));
  for (const int repetitions : {3, 40, 1'000'000}) EXPECT_EQ(read_period({.repetitions = repetitions}), kReadEvery);
  EXPECT_EQ(read_period({.trains = true, .repetitions = 2}), kReadEvery);
}

TEST(ProgressReader, counts_failures_in_a_row_until_an_answer) {
  Agent agent;
  agent.set(Error{ErrorCode::kUnavailable, "nobody"});
  std::mutex mutex;
  std::vector<int> failures;
  ProgressReader reader({.read = [&](const std::string& ip, int) { return agent.read(ip); },
                         .on_report = [&](const api::ObjectKey&) { agent.reported(); },
                         .period = [&](const ReadHistory& history) -> ProgressReader::Clock::duration {
                           const std::lock_guard lock(mutex);
                           failures.push_back(history.failures);
                           if (history.failures == 3) agent.set(std::string("{}"));
                           return std::chrono::seconds(history.failures == 0 ? 3600 : 0);
                         },
                         .threads = 1});
  reader.follow(kJob, kPod0);
  ASSERT_TRUE(agent.wait_for_reports(1));
  const std::lock_guard lock(mutex);
  EXPECT_EQ(failures, (std::vector<int>{1, 2, 3, 0}));
}

TEST(ProgressReader, asks_pod_0_at_once_when_it_becomes_ready) {
  Agent agent;
  ProgressReader reader({.read = [&](const std::string& ip, int) { return agent.read(ip); },
                         .on_report = [&](const api::ObjectKey&) { agent.reported(); },
                         .period = [](const ReadHistory&) { return std::chrono::hours(1); },
                         .threads = 1});
  reader.follow(kJob, kPod0);
  ASSERT_TRUE(agent.wait_for_reports(1));
  agent.set(std::string(R"({"phase": "Running", "progress": {"step": 1}})"));
  ProgressReader::Target ready = kPod0;
  ready.is_ready = true;
  reader.follow(kJob, ready);
  ASSERT_TRUE(agent.wait_for_reports(2));
  EXPECT_EQ(reader.newest(kJob)->progress->step, 1);
}

TEST(ProgressReader, asks_pod_0_again_at_once_when_it_becomes_ready_while_it_is_asked) {
  Agent agent;
  ProgressReader reader({.read = [&](const std::string& ip, int) { return agent.read(ip); },
                         .period = [](const ReadHistory&) { return std::chrono::hours(1); },
                         .threads = 1});
  agent.hold(true);
  reader.follow(kJob, kPod0);
  ASSERT_TRUE(agent.wait_for_requests(1));
  ProgressReader::Target ready = kPod0;
  ready.is_ready = true;
  reader.follow(kJob, ready);
  agent.hold(false);
  EXPECT_TRUE(agent.wait_for_requests(2));
}

TEST(ProgressReader, tells_of_an_answer_that_says_something_new_only) {
  std::atomic<int> reads{0};
  std::mutex mutex;
  std::vector<int> told_after;   // so many readings
  std::vector<int> repetitions;  // after each reading
  ProgressReader reader({.read = [&](const std::string&, int) -> Result<std::string> {
                           const int number = ++reads;
                           reads.notify_all();
                           return std::string(number < 4 ? R"({"phase": "Starting"})" : R"({"phase": "Running"})");
                         },
                         .on_report =
                             [&](const api::ObjectKey&) {
                               const std::lock_guard lock(mutex);
                               told_after.push_back(reads);
                             },
                         .period = [&](const ReadHistory& history) -> ProgressReader::Clock::duration {
                           const std::lock_guard lock(mutex);
                           repetitions.push_back(history.repetitions);
                           return {};
                         },
                         .threads = 1});
  reader.follow(kJob, kPod0);
  for (int seen = 0; seen < 8; seen = reads) reads.wait(seen);
  EXPECT_EQ(reader.newest(kJob)->phase, "Running");
  const std::lock_guard lock(mutex);
  EXPECT_EQ(told_after, (std::vector<int>{1, 4}));
  repetitions.resize(7);
  EXPECT_EQ(repetitions, (std::vector<int>{0, 1, 2, 0, 1, 2, 3}));
}

// The one thread is busy with a job that does not answer while another such job is due and a new one turns up.
TEST(ProgressReader, asks_those_who_do_not_answer_after_the_others) {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::string> asked;
  size_t may_end = 0;  // so many readings
  const auto wait_until = [&](std::unique_lock<std::mutex>& lock, const auto& is_so) {
    return changed.wait_for(lock, std::chrono::seconds(30), is_so);
  };
  ProgressReader reader({.read = [&](const std::string& ip, int) -> Result<std::string> {
                           std::unique_lock lock(mutex);
                           asked.push_back(ip);
                           const size_t number = asked.size();
                           changed.notify_all();
                           wait_until(lock, [&] { return may_end >= number; });
                           if (ip == "10.0.0.9") return std::string("{}");
                           return Error{ErrorCode::kUnavailable, "nobody"};
                         },
                         .on_report = [](const api::ObjectKey&) {},
                         .period = [](const ReadHistory& history) -> ProgressReader::Clock::duration {
                           return std::chrono::seconds(history.failures == 0 ? 3600 : 0);
                         },
                         .threads = 1});
  const auto follow = [&](const std::string& name, const std::string& ip) {
    reader.follow({.ns = "ns", .name = name}, {.pod_uid = name, .ip = ip});
  };
  const auto let_end = [&](size_t count) {
    const std::lock_guard lock(mutex);
    may_end = count;
    changed.notify_all();
  };
  const auto wait_for = [&](size_t count) {
    std::unique_lock lock(mutex);
    return wait_until(lock, [&] { return asked.size() >= count; });
  };
  follow("silent-1", "10.0.0.1");
  ASSERT_TRUE(wait_for(1));
  follow("silent-2", "10.0.0.2");
  let_end(2);
  ASSERT_TRUE(wait_for(3));  // silent-1 again; silent-2 is due
  follow("new", "10.0.0.9");
  let_end(4);
  ASSERT_TRUE(wait_for(5));
  {
    const std::lock_guard lock(mutex);
    EXPECT_EQ(asked, (std::vector<std::string>{"10.0.0.1", "10.0.0.2", "10.0.0.1", "10.0.0.9", "10.0.0.2"}));
  }
  let_end(1'000'000'000);
}

TEST(ProgressReader, ends_while_it_waits_for_the_next_time) {
  const auto begin = std::chrono::steady_clock::now();
  {
    std::atomic<int> reads{0};
    ProgressReader reader({.read = [&](const std::string&, int) -> Result<std::string> {
      ++reads;
      reads.notify_all();
      return Error{ErrorCode::kUnavailable, "nobody"};
    }});
    ProgressReader::Target training = kPod0;
    training.trains = true;  // the longer of the two periods
    reader.follow(kJob, training);
    reads.wait(0);
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, kReadEvery);
}

}  // namespace
}  // namespace lockstep::train
