// A reflector and a cache against a model of an API server with every fault that a watch can have, in simulated time.
//
// What must hold: the cache never shows an older state of an object after a newer one; for each object, handlers hear
// in turn that it appeared and that it is gone; when the faults end, the cache equals the server within a minute.

#include <gtest/gtest.h>

#include <deque>
#include <map>
#include <random>

#include "operator/control/cache.h"
#include "operator/control/reflector.h"
#include "tests/operator/control/test_clock.h"
#include "tests/operator/control/test_objects.h"

namespace lockstep::control {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using Type = kube::WatchEvent::Type;

// One resource of an API server: objects, their history, and how much of it compaction has left.
class ModelServer {
 public:
  struct Past {
    uint64_t version;
    kube::WatchEvent event;
  };

  void put(const std::string& name) {
    ++version_;
    const auto found = objects_.find(name);
    const bool is_new = found == objects_.end();
    const std::string uid =
        is_new ? "u" + std::to_string(version_) : found->second["metadata"]["uid"].get<std::string>();
    Json object = widget({.name = name, .version = std::to_string(version_), .uid = uid});
    objects_[name] = object;
    history_.push_back({version_, {is_new ? Type::kAdded : Type::kModified, std::move(object)}});
  }

  void remove(const std::string& name) {
    const auto found = objects_.find(name);
    if (found == objects_.end()) return;
    ++version_;
    Json object = found->second;
    object["metadata"]["resourceVersion"] = std::to_string(version_);
    objects_.erase(found);
    history_.push_back({version_, {Type::kDeleted, std::move(object)}});
  }

  void compact() { compacted_ = version_; }
  // Other resources move the version as well.
  void pass() { ++version_; }

  [[nodiscard]] std::vector<Json> list() const {
    std::vector<Json> listed;
    for (const auto& [name, object] : objects_) listed.push_back(object);
    return listed;
  }

  [[nodiscard]] bool is_gone(uint64_t version) const { return version < compacted_; }
  [[nodiscard]] uint64_t version() const { return version_; }
  [[nodiscard]] const std::map<std::string, Json>& objects() const { return objects_; }
  // The first event after `version`; nullptr: none yet.
  [[nodiscard]] const Past* after(uint64_t version) const {
    for (const Past& past : history_) {
      if (past.version > version) return &past;
    }
    return nullptr;
  }

 private:
  uint64_t version_ = 10;
  uint64_t compacted_ = 0;
  std::map<std::string, Json> objects_;
  std::deque<Past> history_;
};

class Simulation {
 public:
  explicit Simulation(unsigned seed) : dice_(seed) {}

  void run() {
    carry_out(step(state_, ReflectorStarted{}, clock_.now()));
    for (int i = 0; i < 1500; ++i) {
      change_server();
      move(true);
      if (testing::Test::HasFatalFailure()) return;
    }
    const Clock::time_point quiet_since = clock_.now();
    while (clock_.now() - quiet_since < seconds(90)) move(false);
    for (const auto& [name, object] : server_.objects()) {
      const ObjectPtr seen = cache_.get({"ns", name});
      ASSERT_NE(seen, nullptr) << name;
      EXPECT_EQ(*seen, object);
    }
    EXPECT_EQ(cache_.size(), server_.objects().size());
    EXPECT_GT(lists_, 1) << "the faults made it list again";
    EXPECT_LT(requests_, 1500) << "no storm of requests";
  }

 private:
  bool chance(int percent) { return static_cast<int>(dice_() % 100) < percent; }
  std::string some_name() { return "o" + std::to_string(dice_() % 12); }

  void change_server() {
    for (auto n = dice_() % 3; n > 0; --n) {
      const std::string name = some_name();
      const auto what = dice_() % 10;
      if (what < 6) {
        server_.put(name);
        if (chance(30)) assume(name);
      } else if (what < 9) {
        if (chance(50)) assume_deleted(name);
        server_.remove(name);
      } else {
        server_.pass();
      }
    }
    if (chance(3)) server_.compact();
  }

  // A reconciler reads the answer of its own write, sometimes late.
  void assume(const std::string& name) {
    answers_.push_back(server_.objects().at(name));
    while (!answers_.empty() && chance(70)) {
      cache_.assume(answers_.front());
      answers_.pop_front();
      check_cache();
    }
  }
  void assume_deleted(const std::string& name) {
    const auto found = server_.objects().find(name);
    if (found != server_.objects().end()) cache_.assume_deleted({"ns", name}, found->second["metadata"]["uid"]);
  }

  // One thing happens to the reflector.
  void move(bool faults) {
    clock_.turn(milliseconds(dice_() % 400));
    if (state_.phase == ReflectorPhase::kWaitingToList || state_.phase == ReflectorPhase::kWaitingToWatch) {
      if (clock_.now() >= state_.wait_until) send(ReflectorTimer{});
    } else if (state_.phase == ReflectorPhase::kListing) {
      answer_list(faults);
    } else {
      serve_watch(faults);
    }
  }

  void answer_list(bool faults) {
    if (faults && chance(20)) {
      send(ListFailed{{chance(50) ? ErrorCode::kUnavailable : ErrorCode::kGone, "list"}});
      return;
    }
    listed_ = server_.list();
    const std::string version = std::to_string(server_.version());
    // The answer is on its way while the server goes on.
    if (faults && chance(50)) change_server();
    send(Listed{version});
  }

  void serve_watch(bool faults) {
    const uint64_t from = std::stoull(watched_);
    if (server_.is_gone(from)) {
      send(WatchEnded{Error{ErrorCode::kGone, "too old resource version"}});
      return;
    }
    if (faults && chance(12)) {
      const ErrorCode codes[] = {ErrorCode::kUnavailable, ErrorCode::kRetry, ErrorCode::kCorrupt,
                                 ErrorCode::kForbidden};
      const auto which = dice_() % 6;
      send(which < 4 ? WatchEnded{Error{codes[which], "watch"}} : WatchEnded{});
      return;
    }
    if (const ModelServer::Past* past = server_.after(from); past != nullptr) {
      watched_ = std::to_string(past->version);
      send(WatchBrought{past->event});
      // An intermediary that sends an event again.
      if (faults && chance(5)) send(WatchBrought{past->event});
    } else if (chance(20)) {
      watched_ = std::to_string(server_.version());
      send(WatchBrought{{Type::kBookmark, {{"metadata", {{"resourceVersion", watched_}}}}}});
    }
  }

  void send(ReflectorEvent event) { carry_out(step(state_, std::move(event), clock_.now())); }

  void carry_out(std::vector<ReflectorOutput> outputs) {
    for (ReflectorOutput& output : outputs) {
      if (std::holds_alternative<ListAll>(output)) ++lists_, ++requests_;
      if (auto* watch = std::get_if<WatchFrom>(&output)) ++requests_, watched_ = watch->version;
      if (auto* replace = std::get_if<ReplaceCache>(&output)) {
        for (const auto& change : lockstep::control::replace(cache_, std::move(listed_), replace->version))
          hear(change);
      }
      if (auto* put = std::get_if<PutIntoCache>(&output)) hear(cache_.put(std::move(put->object)));
      if (auto* erase = std::get_if<EraseFromCache>(&output)) hear(cache_.erase(erase->object));
      if (auto* advance = std::get_if<AdvanceCache>(&output)) cache_.advance(advance->version);
    }
    check_cache();
  }

  void hear(const Cache<Json>::Change& change) {
    if (change.before == change.after) return;
    const api::ObjectKey key = api::key_of(change.before ? *change.before : *change.after);
    if (change.after == nullptr && heard_[key] == nullptr) return;  // it was only assumed
    EXPECT_EQ(heard_[key], change.before) << "the change begins where the last one ended";
    heard_[key] = change.after;
  }

  // No object goes back to an older state, whether a watch, a list or a reconciler brought it.
  void check_cache() {
    for (const ObjectPtr& object : cache_.list()) {
      const auto version = std::stoull(version_of(*object));
      uint64_t& newest = newest_seen_[(*object)["metadata"]["uid"]];
      ASSERT_GE(version, newest) << (*object)["metadata"]["name"];
      newest = version;
    }
  }

  std::mt19937 dice_;
  TestClock clock_;
  ModelServer server_;
  Cache<Json> cache_{{}, {}, clock_.source()};
  ReflectorState state_{[this] { return static_cast<double>(dice_() % 1000) / 1000.0; }};
  std::vector<Json> listed_;
  std::string watched_;
  std::deque<Json> answers_;
  std::map<api::ObjectKey, ObjectPtr> heard_;
  std::map<std::string, uint64_t> newest_seen_;
  int lists_ = 0;
  int requests_ = 0;
};

TEST(ReflectorSimulation, the_cache_follows_the_server_through_every_fault_and_never_goes_back) {
  for (unsigned seed = 1; seed <= 100; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Simulation(seed).run();
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace lockstep::control
