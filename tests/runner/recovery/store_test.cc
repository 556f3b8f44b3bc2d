#include "runner/recovery/store.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <compare>
#include <random>

namespace lockstep {
namespace {

using namespace std::chrono_literals;

constexpr uint64_t kGeneration = 5;
const TimePoint kNow{100s};
constexpr StoreClient kFirst{.connection = 1, .local_rank = 0};
constexpr StoreClient kSecond{.connection = 2, .local_rank = 0};

StoreRequest request(StoreOp op, std::vector<std::string> keys, std::vector<std::string> values = {}) {
  StoreRequest r;
  r.id = 9;
  r.generation = kGeneration;
  r.op = op;
  r.keys = std::move(keys);
  r.values = std::move(values);
  r.timeout = 1000ms;
  return r;
}

class Store : public testing::Test {
 protected:
  Store() { store_.begin_generation(kGeneration); }

  StoreReply ask(const StoreRequest& r) {
    const std::vector<StoreAnswer> answers = store_.apply(kFirst, r, kNow);
    EXPECT_EQ(answers.size(), 1U);
    return answers.empty() ? StoreReply{} : answers[0].reply;
  }
  int64_t add(const std::string& key, int64_t amount) {
    StoreRequest r = request(StoreOp::kAdd, {key});
    r.amount = amount;
    return ask(r).number;
  }

  KeyValueStore store_;
};

TEST_F(Store, gives_back_what_was_set) {
  const std::string bytes("\0\xff\n", 3);
  ask(request(StoreOp::kSet, {"k"}, {bytes}));
  const StoreReply reply = ask(request(StoreOp::kGet, {"k"}));
  EXPECT_EQ(reply.id, 9U);
  EXPECT_EQ(reply.values, std::vector<std::string>{bytes});
}

TEST_F(Store, answers_a_get_when_the_key_comes) {
  EXPECT_TRUE(store_.apply(kSecond, request(StoreOp::kGet, {"k"}), kNow).empty());
  const std::vector<StoreAnswer> answers = store_.apply(kFirst, request(StoreOp::kSet, {"k"}, {"v"}), kNow);
  ASSERT_EQ(answers.size(), 2U);
  EXPECT_EQ(answers[1].client, kSecond);
  EXPECT_EQ(answers[1].reply.values, std::vector<std::string>{"v"});
  EXPECT_FALSE(store_.next_deadline().has_value());
}

TEST_F(Store, answers_a_wait_only_when_all_keys_are_there) {
  store_.apply(kSecond, request(StoreOp::kWait, {"a", "b"}), kNow);
  EXPECT_EQ(store_.apply(kFirst, request(StoreOp::kSet, {"a"}, {"1"}), kNow).size(), 1U);
  EXPECT_EQ(store_.apply(kFirst, request(StoreOp::kSet, {"b"}, {"1"}), kNow).size(), 2U);
}

TEST_F(Store, times_out_and_names_the_missing_keys) {
  ask(request(StoreOp::kSet, {"a"}, {"1"}));
  store_.apply(kSecond, request(StoreOp::kWait, {"a", "b"}), kNow);
  EXPECT_EQ(store_.next_deadline(), kNow + 1000ms);
  EXPECT_TRUE(store_.expire(kNow + 999ms).empty());
  const std::vector<StoreAnswer> answers = store_.expire(kNow + 1000ms);
  ASSERT_EQ(answers.size(), 1U);
  EXPECT_EQ(answers[0].reply.status, StoreStatus::kTimeout);
  EXPECT_EQ(answers[0].reply.message, "after 1000 ms nobody has set b");
}

TEST_F(Store, takes_an_endless_timeout) {
  StoreRequest r = request(StoreOp::kGet, {"k"});
  r.timeout = std::chrono::milliseconds::max();
  store_.apply(kSecond, r, kNow);
  EXPECT_TRUE(store_.expire(kNow + std::chrono::hours(1'000'000)).empty());
}

TEST_F(Store, adds_and_shows_the_sum_as_text) {
  EXPECT_EQ(add("n", 3), 3);
  EXPECT_EQ(add("n", -5), -2);
  EXPECT_EQ(ask(request(StoreOp::kGet, {"n"})).values[0], "-2");
}

TEST_F(Store, refuses_to_add_to_text_and_to_overflow) {
  ask(request(StoreOp::kSet, {"t"}, {"abc"}));
  EXPECT_EQ(ask(request(StoreOp::kAdd, {"t"})).status, StoreStatus::kInvalid);
  ask(request(StoreOp::kSet, {"n"}, {"9223372036854775807"}));
  StoreRequest r = request(StoreOp::kAdd, {"n"});
  r.amount = 1;
  EXPECT_EQ(ask(r).status, StoreStatus::kInvalid);
}

TEST_F(Store, compares_and_sets_as_c10d_does) {
  EXPECT_EQ(ask(request(StoreOp::kCompareSet, {"k"}, {"x", "y"})).values[0], "x");
  EXPECT_EQ(ask(request(StoreOp::kCheck, {"k"})).number, 0);
  EXPECT_EQ(ask(request(StoreOp::kCompareSet, {"k"}, {"", "a"})).values[0], "a");
  EXPECT_EQ(ask(request(StoreOp::kCompareSet, {"k"}, {"wrong", "b"})).values[0], "a");
  EXPECT_EQ(ask(request(StoreOp::kCompareSet, {"k"}, {"a", "b"})).values[0], "b");
}

TEST_F(Store, deletes_checks_and_counts) {
  ask(request(StoreOp::kSet, {"a"}, {"1"}));
  ask(request(StoreOp::kSet, {"b"}, {"1"}));
  EXPECT_EQ(ask(request(StoreOp::kNumKeys, {})).number, 2);
  EXPECT_EQ(ask(request(StoreOp::kCheck, {"a", "b"})).number, 1);
  EXPECT_EQ(ask(request(StoreOp::kDelete, {"a"})).number, 1);
  EXPECT_EQ(ask(request(StoreOp::kDelete, {"a"})).number, 0);
  EXPECT_EQ(ask(request(StoreOp::kCheck, {"a", "b"})).number, 0);
}

TEST_F(Store, refuses_other_generations_and_forgets_at_a_new_one) {
  ask(request(StoreOp::kSet, {"a"}, {"1"}));
  store_.apply(kSecond, request(StoreOp::kGet, {"never"}), kNow);
  const std::vector<StoreAnswer> stale = store_.begin_generation(kGeneration + 1);
  ASSERT_EQ(stale.size(), 1U);
  EXPECT_EQ(stale[0].reply.status, StoreStatus::kStale);
  EXPECT_EQ(ask(request(StoreOp::kGet, {"a"})).status, StoreStatus::kStale);
  StoreRequest r = request(StoreOp::kNumKeys, {});
  r.generation = kGeneration + 1;
  EXPECT_EQ(ask(r).number, 0);
  EXPECT_FALSE(store_.next_deadline().has_value());
  r = request(StoreOp::kSet, {"never"}, {"1"});  // nobody waits for it any more
  r.generation = kGeneration + 1;
  EXPECT_EQ(store_.apply(kFirst, r, kNow).size(), 1U);
  EXPECT_TRUE(store_.begin_generation(kGeneration + 2).empty());
}

TEST_F(Store, answers_a_get_whatever_makes_the_key) {
  store_.apply(kSecond, request(StoreOp::kGet, {"n"}), kNow);
  EXPECT_EQ(store_.apply(kFirst, request(StoreOp::kAdd, {"n"}), kNow).size(), 2U);
  store_.apply(kSecond, request(StoreOp::kGet, {"c"}), kNow);
  EXPECT_EQ(store_.apply(kFirst, request(StoreOp::kCompareSet, {"c"}, {"x", "y"}), kNow).size(), 1U);
  EXPECT_EQ(store_.apply(kFirst, request(StoreOp::kCompareSet, {"c"}, {"", "y"}), kNow).size(), 2U);
}

TEST_F(Store, drops_what_a_lost_connection_waits_for) {
  store_.apply(kSecond, request(StoreOp::kGet, {"k"}), kNow);
  store_.forget_connection(kSecond.connection);
  EXPECT_EQ(store_.apply(kFirst, request(StoreOp::kSet, {"k"}, {"v"}), kNow).size(), 1U);
}

TEST_F(Store, sets_and_gets_several_keys_at_once) {
  store_.apply(kSecond, request(StoreOp::kGet, {"b", "a"}), kNow);
  const std::vector<StoreAnswer> answers = store_.apply(kFirst, request(StoreOp::kSet, {"a", "b"}, {"1", "2"}), kNow);
  ASSERT_EQ(answers.size(), 2U);
  EXPECT_EQ(answers[1].client, kSecond);
  EXPECT_EQ(answers[1].reply.values, (std::vector<std::string>{"2", "1"}));
}

TEST_F(Store, appends) {
  store_.apply(kSecond, request(StoreOp::kGet, {"k"}), kNow);
  const std::vector<StoreAnswer> answers = store_.apply(kFirst, request(StoreOp::kAppend, {"k"}, {"ab"}), kNow);
  ASSERT_EQ(answers.size(), 2U);
  EXPECT_EQ(answers[0].reply.number, 2);
  EXPECT_EQ(answers[1].reply.values, std::vector<std::string>{"ab"});
  EXPECT_EQ(ask(request(StoreOp::kAppend, {"k"}, {"c"})).number, 3);
  EXPECT_EQ(ask(request(StoreOp::kGet, {"k"})).values[0], "abc");
}

TEST_F(Store, answers_when_all_keys_are_there_at_one_time) {
  store_.apply(kSecond, request(StoreOp::kWait, {"a", "b"}), kNow);
  ask(request(StoreOp::kSet, {"a"}, {"1"}));
  ask(request(StoreOp::kDelete, {"a"}));
  EXPECT_EQ(store_.apply(kFirst, request(StoreOp::kSet, {"b"}, {"1"}), kNow).size(), 1U);
  EXPECT_EQ(store_.apply(kFirst, request(StoreOp::kSet, {"a"}, {"1"}), kNow).size(), 2U);
}

TEST_F(Store, names_some_of_many_missing_keys) {
  std::vector<std::string> keys;
  for (int i = 0; i < 10; ++i) keys.push_back("k" + std::to_string(i));
  store_.apply(kSecond, request(StoreOp::kWait, keys), kNow);
  const std::vector<StoreAnswer> answers = store_.expire(kNow + 1000ms);
  ASSERT_EQ(answers.size(), 1U);
  EXPECT_EQ(answers[0].reply.message, "after 1000 ms nobody has set k0, k1, k2, k3, k4, k5, k6, k7 and 2 more");
}

// The same semantics without an index: after every request, all waiting requests are checked.
class PlainStore {
 public:
  struct Answered {
    StoreClient client;
    uint64_t id = 0;
    StoreStatus status = StoreStatus::kOk;
    std::vector<std::string> values;
    auto operator<=>(const Answered&) const = default;
  };

  std::vector<Answered> apply(StoreClient client, const StoreRequest& r, TimePoint now) {
    std::vector<Answered> answers;
    if (r.op == StoreOp::kSet) {
      for (size_t i = 0; i < r.keys.size(); ++i) values_[r.keys[i]] = r.values[i];
    }
    if (r.op == StoreOp::kDelete) values_.erase(r.keys[0]);
    if (r.op == StoreOp::kGet) {
      waiting_.push_back({client, r, now + r.timeout});
    } else {
      answers.push_back({client, r.id, StoreStatus::kOk, {}});
    }
    std::erase_if(waiting_, [&](const Waiting& w) {
      if (!has_all(w.request)) return false;
      answers.push_back({w.client, w.request.id, StoreStatus::kOk, {}});
      for (const std::string& key : w.request.keys) answers.back().values.push_back(values_.at(key));
      return true;
    });
    return answers;
  }
  std::vector<Answered> expire(TimePoint now) {
    std::vector<Answered> answers;
    std::erase_if(waiting_, [&](const Waiting& w) {
      if (now < w.deadline) return false;
      answers.push_back({w.client, w.request.id, StoreStatus::kTimeout, {}});
      return true;
    });
    return answers;
  }
  void forget_connection(uint64_t connection) {
    std::erase_if(waiting_, [&](const Waiting& w) { return w.client.connection == connection; });
  }
  [[nodiscard]] std::optional<TimePoint> next_deadline() const {
    std::optional<TimePoint> next;
    for (const Waiting& w : waiting_) next = next ? std::min(*next, w.deadline) : w.deadline;
    return next;
  }

 private:
  struct Waiting {
    StoreClient client;
    StoreRequest request;
    TimePoint deadline;
  };
  [[nodiscard]] bool has_all(const StoreRequest& r) const {
    return std::all_of(r.keys.begin(), r.keys.end(), [&](const std::string& key) { return values_.contains(key); });
  }

  std::map<std::string, std::string> values_;
  std::vector<Waiting> waiting_;
};

std::vector<PlainStore::Answered> sorted(std::vector<PlainStore::Answered> answers) {
  std::sort(answers.begin(), answers.end());
  return answers;
}

std::vector<PlainStore::Answered> plain(const std::vector<StoreAnswer>& answers) {
  std::vector<PlainStore::Answered> made;
  made.reserve(answers.size());
  for (const StoreAnswer& a : answers) made.push_back({a.client, a.reply.id, a.reply.status, a.reply.values});
  return sorted(std::move(made));
}

TEST_F(Store, answers_as_one_that_looks_at_everything_each_time) {
  std::mt19937 random(7);
  const auto below = [&random](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  PlainStore other;
  TimePoint now = kNow;
  size_t answered = 0;
  for (uint64_t id = 1; id <= 30'000; ++id) {
    const StoreClient client{.connection = random() % 20, .local_rank = below(2)};
    const int what = below(100);
    now += std::chrono::milliseconds(below(30));
    if (what == 0) {
      store_.forget_connection(client.connection);
      other.forget_connection(client.connection);
    }
    StoreRequest r = request(what < 55 ? StoreOp::kGet : what < 75 ? StoreOp::kSet : StoreOp::kDelete, {});
    r.id = id;
    const int keys = r.op == StoreOp::kDelete ? 1 : 1 + below(4);  // one key may be named twice
    for (int i = 0; i < keys; ++i) {
      r.keys.push_back("k" + std::to_string(below(12)));
      if (r.op == StoreOp::kSet) r.values.push_back(std::to_string(below(1000)));
    }
    ASSERT_EQ(plain(store_.expire(now)), sorted(other.expire(now)));
    const std::vector<PlainStore::Answered> answers = plain(store_.apply(client, r, now));
    ASSERT_EQ(answers, sorted(other.apply(client, r, now))) << "request " << id;
    answered += answers.size();
    ASSERT_EQ(store_.next_deadline(), other.next_deadline());
  }
  EXPECT_GT(answered, 20'000U);
}

TEST_F(Store, refuses_a_wrong_number_of_keys_or_values) {
  EXPECT_EQ(ask(request(StoreOp::kSet, {"k"})).status, StoreStatus::kInvalid);
  EXPECT_EQ(ask(request(StoreOp::kSet, {"k", "l"}, {"1"})).status, StoreStatus::kInvalid);
  EXPECT_EQ(ask(request(StoreOp::kSet, {})).status, StoreStatus::kInvalid);
  EXPECT_EQ(ask(request(StoreOp::kAppend, {"k"})).status, StoreStatus::kInvalid);
  EXPECT_EQ(ask(request(StoreOp::kGet, {})).status, StoreStatus::kInvalid);
  EXPECT_EQ(ask(request(StoreOp::kCompareSet, {"k"}, {"one"})).status, StoreStatus::kInvalid);
}

}  // namespace
}  // namespace lockstep
