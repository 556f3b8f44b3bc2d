#include "operator/control/event_recorder.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "operator/control/event_aggregator.h"
#include "tests/operator/control/journal.h"
#include "tests/operator/control/memory_api_server.h"
#include "tests/operator/control/test_clock.h"

namespace lockstep::control {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using Answer = std::optional<Result<kube::HttpResponse>>;

const ObjectReference kJob{"lockstep.dev/v1", "TrainJob", {"ns", "job"}, "uid-1", "7"};

EventText text(const std::string& message) { return {EventText::Type::kNormal, "Started", message, ""}; }

class EventRecorderTest : public ::testing::Test {
 protected:
  EventRecorder::Options options(const std::string& instance = "me") {
    return {.instance = instance,
            .logger = Logger({.sink = [this](const std::string& line) { said_.write(line); }}),
            .now = clock_.source(),
            .wall = [this] { return std::chrono::duration_cast<seconds>(clock_.now().time_since_epoch()).count(); }};
  }
  // The Events about the job.
  std::vector<Json> events() const {
    std::vector<Json> events = server_->list(kube::kEvents);
    std::erase_if(events, [](const Json& event) { return event["involvedObject"]["name"] != "job"; });
    return events;
  }
  bool has_count(int count) const {
    const std::vector<Json> events = this->events();
    return events.size() == 1 && events[0]["count"] == count;
  }
  bool wait_for_count(int count) {
    return server_->wait_until([&](const MemoryApiServer&) { return has_count(count); });
  }
  // The same for a count that is not due yet: advances the clock, and records another event to wake the writer.
  bool wait_for_count(int count, EventRecorder& recorder) {
    return server_->wait_until([&](const MemoryApiServer&) {
      clock_.turn(kEventUpdateInterval);
      recorder.record({"v1", "Pod", {"ns", "other"}, "", ""}, text("tick"));
      return has_count(count);
    });
  }

  std::shared_ptr<MemoryApiServer> server_ = std::make_shared<MemoryApiServer>();
  kube::Client client_{server_, {.retry_for = milliseconds(0)}};
  TestClock clock_;
  Journal said_;
};

TEST_F(EventRecorderTest, makes_an_event_and_raises_its_count) {
  EventRecorder recorder(client_, options());
  recorder.record(kJob, text("it runs"));
  ASSERT_TRUE(wait_for_count(1));
  recorder.record(kJob, text("it runs"));
  recorder.record(kJob, text("it runs"));
  clock_.turn(seconds(1));
  recorder.record(kJob, text("it runs"));
  ASSERT_TRUE(wait_for_count(4, recorder));
  const Json event = events()[0];
  EXPECT_EQ(event["message"], "it runs");
  EXPECT_EQ(event["involvedObject"]["uid"], "uid-1");
  EXPECT_EQ(event["reportingInstance"], "me");
  EXPECT_NE(event["firstTimestamp"], event["lastTimestamp"]);
}

TEST_F(EventRecorderTest, counts_on_where_its_predecessor_ended) {
  { EventRecorder(client_, options("before")).record(kJob, text("it runs")); }
  ASSERT_TRUE(wait_for_count(1));
  EventRecorder recorder(client_, options("after"));
  recorder.record(kJob, text("it runs"));
  EXPECT_TRUE(wait_for_count(2));
}

TEST_F(EventRecorderTest, an_answer_that_was_lost_does_not_count_twice) {
  // The server stored the first create, its answer was lost, and the transport sent it again: AlreadyExists.
  std::atomic<bool> once{true};
  server_->intercept([&](const kube::HttpRequest& request) -> Answer {
    if (request.method != "POST" || !once.exchange(false)) return std::nullopt;
    server_->put(kube::kEvents, Json::parse(request.body));
    return std::nullopt;
  });
  {
    EventRecorder recorder(client_, options());
    recorder.record(kJob, text("it runs"));
    ASSERT_TRUE(wait_for_count(1));
  }
  EXPECT_TRUE(wait_for_count(1));
  for (const std::string& request : server_->requests()) EXPECT_EQ(request.find("PATCH"), std::string::npos) << request;
}

TEST_F(EventRecorderTest, an_event_whose_life_is_over_is_made_again) {
  EventRecorder recorder(client_, options());
  recorder.record(kJob, text("it runs"));
  ASSERT_TRUE(wait_for_count(1));
  server_->remove(kube::kEvents, api::key_of(events()[0]));
  recorder.record(kJob, text("it runs"));
  recorder.record(kJob, text("it runs"));
  EXPECT_TRUE(wait_for_count(2, recorder)) << "the two that no Event tells of";
}

TEST_F(EventRecorderTest, what_is_refused_is_said_once_and_dropped) {
  server_->intercept([](const kube::HttpRequest&) -> Answer {
    return MemoryApiServer::status(403, "Forbidden", "the namespace is being terminated");
  });
  {
    EventRecorder recorder(client_, options());
    recorder.record(kJob, text("it runs"));
    ASSERT_TRUE(said_.wait_until([](const auto& lines) { return !lines.empty(); }));
  }  // writes what still waits
  EXPECT_NE(said_.lines()[0].find("an event was refused"), std::string::npos) << said_.lines()[0];
  EXPECT_NE(said_.lines()[0].find("being terminated"), std::string::npos) << said_.lines()[0];
  EXPECT_EQ(server_->count("POST /api/v1/namespaces/ns/events"), 1);
}

TEST_F(EventRecorderTest, waits_for_an_api_server_that_is_away) {
  std::atomic<bool> away{true};
  server_->intercept([&](const kube::HttpRequest&) -> Answer {
    if (!away) return std::nullopt;
    return Error{ErrorCode::kUnavailable, "no route to host"};
  });
  EventRecorder recorder(client_, options());
  recorder.record(kJob, text("it runs"));
  ASSERT_TRUE(said_.wait_until([](const auto& lines) { return !lines.empty(); }));
  away = false;
  EXPECT_TRUE(wait_for_count(1, recorder));
}

TEST_F(EventRecorderTest, writes_what_waits_at_the_end) {
  {
    EventRecorder recorder(client_, options());
    recorder.record(kJob, text("it runs"));
    ASSERT_TRUE(wait_for_count(1));
    recorder.record(kJob, text("it runs"));  // due in ten seconds
    for (int i = 0; i < 10; ++i) recorder.record(kJob, text("message " + std::to_string(i)));
  }
  const std::vector<Json> events = server_->list(kube::kEvents);
  EXPECT_EQ(events.size(), 11U);
  int total = 0;
  for (const Json& event : events) total += event["count"].get<int>();
  EXPECT_EQ(total, 12);
}

TEST_F(EventRecorderTest, does_not_try_for_long_at_the_end) {
  server_->intercept([&](const kube::HttpRequest&) -> Answer { return Error{ErrorCode::kUnavailable, "no route"}; });
  {
    EventRecorder recorder(client_, options());
    for (int i = 0; i < 20; ++i) recorder.record(kJob, text("message " + std::to_string(i)));
    ASSERT_TRUE(said_.wait_until([](const auto& lines) { return lines.size() == 20; }));
  }
  EXPECT_EQ(server_->requests().size(), 21U) << "one look is enough";
}

TEST_F(EventRecorderTest, begins_nothing_after_two_seconds_of_flushing) {
  std::atomic<bool> away{true};
  server_->intercept([&](const kube::HttpRequest&) -> Answer {
    if (away) return Error{ErrorCode::kUnavailable, "no route"};
    clock_.turn(seconds(1));  // a slow server
    return std::nullopt;
  });
  {
    EventRecorder recorder(client_, options());
    for (int i = 0; i < 20; ++i) recorder.record(kJob, text("message " + std::to_string(i)));
    // All wait for another try, which does not come: the clock stands still.
    ASSERT_TRUE(said_.wait_until([](const auto& lines) { return lines.size() == 20; }));
    away = false;
  }
  EXPECT_EQ(server_->list(kube::kEvents).size(), 2U);
}

TEST_F(EventRecorderTest, takes_records_from_many_threads) {
  {
    EventRecorder recorder(client_, options());
    std::vector<std::jthread> threads;
    for (int thread = 0; thread < 4; ++thread) {
      threads.emplace_back([&, thread] {
        const ObjectReference about{"v1", "Pod", {"ns", "p" + std::to_string(thread)}, "", ""};
        for (int i = 0; i < 500; ++i) recorder.record(about, text("m" + std::to_string(i % 5)));
      });
    }
  }
  int total = 0;
  for (const Json& event : server_->list(kube::kEvents)) total += event["count"].get<int>();
  EXPECT_EQ(total, 2000);
}

}  // namespace
}  // namespace lockstep::control
