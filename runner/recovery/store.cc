#include "runner/recovery/store.h"

#include <algorithm>
#include <limits>

#include "runner/base/json.h"
#include "runner/contract/generation.h"

namespace lockstep {
namespace {

// Most keys that a message names; of the others it gives only the number.
constexpr size_t kKeysNamedMax = 8;

StoreReply refusal(const StoreRequest& request, StoreStatus status, std::string why) {
  return StoreReply{.id = request.id, .status = status, .values = {}, .number = 0, .message = std::move(why)};
}

StoreReply ok(const StoreRequest& request) {
  StoreReply reply;
  reply.id = request.id;
  return reply;
}

// What is wrong with the number of keys and values of a request; empty when nothing is.
std::string shape_problem(const StoreRequest& request) {
  const size_t keys = request.keys.size();
  const size_t values = request.values.size();
  switch (request.op) {
    case StoreOp::kSet:
      return keys >= 1 && values == keys ? "" : "set takes keys and a value for each";
    case StoreOp::kAppend:
      return keys == 1 && values == 1 ? "" : "append takes one key and one value";
    case StoreOp::kCompareSet:
      return keys == 1 && values == 2 ? "" : "compare_set takes one key, the expected and the desired value";
    case StoreOp::kGet:
      return keys >= 1 ? "" : "get takes a key, or several";
    case StoreOp::kAdd:
    case StoreOp::kDelete:
      return keys == 1 ? "" : "add and delete take one key";
    case StoreOp::kCheck:
    case StoreOp::kWait:
    case StoreOp::kNumKeys:
      return "";
  }
  return "unknown operation";
}

// The keys that have no value: "0/3, 0/7".
std::string missing_text(const std::vector<std::string>& keys, const std::map<std::string, std::string>& values) {
  std::string text;
  size_t count = 0;
  for (const std::string& key : keys) {
    if (values.contains(key) || ++count > kKeysNamedMax) continue;
    text += (text.empty() ? "" : ", ") + key;
  }
  return count <= kKeysNamedMax ? text : text + " and " + std::to_string(count - kKeysNamedMax) + " more";
}

}  // namespace

std::vector<StoreAnswer> KeyValueStore::begin_generation(uint64_t generation) {
  std::vector<StoreAnswer> answers;
  for (const auto& [id, w] : waiting_) {
    answers.push_back({id.first, refusal(w.request, StoreStatus::kStale, "the generation has ended")});
  }
  waiting_.clear();
  by_missing_key_.clear();
  by_deadline_.clear();
  values_.clear();
  generation_ = generation;
  return answers;
}

std::vector<StoreAnswer> KeyValueStore::apply(StoreClient client, const StoreRequest& request, TimePoint now) {
  if (request.generation != generation_) {
    return {{client, refusal(request, StoreStatus::kStale,
                             "the request is of generation " + generation_text(request.generation) +
                                 ", the store of generation " + generation_text(generation_))}};
  }
  if (const std::string problem = shape_problem(request); !problem.empty()) {
    return {{client, refusal(request, StoreStatus::kInvalid, problem)}};
  }
  const bool blocks = request.op == StoreOp::kGet || request.op == StoreOp::kWait;
  const size_t missing = blocks ? first_missing(request.keys, 0) : request.keys.size();
  if (missing < request.keys.size()) {
    wait(client, request, missing, now);
    return {};
  }
  std::vector<StoreAnswer> answers{{client, execute(request)}};
  const bool makes_keys = request.op == StoreOp::kSet || request.op == StoreOp::kAdd ||
                          request.op == StoreOp::kCompareSet || request.op == StoreOp::kAppend;
  if (makes_keys) {
    for (const std::string& key : request.keys) answer_waiting_for(key, answers);
  }
  return answers;
}

StoreReply KeyValueStore::execute(const StoreRequest& request) {
  StoreReply reply = ok(request);
  switch (request.op) {
    case StoreOp::kSet:
      for (size_t i = 0; i < request.keys.size(); ++i) values_[request.keys[i]] = request.values[i];
      return reply;
    case StoreOp::kAppend:
      reply.number = std::ssize(values_[request.keys[0]].append(request.values[0]));
      return reply;
    case StoreOp::kGet:
    case StoreOp::kWait:
      return reply_to_present(request);
    case StoreOp::kAdd:
      return add(request);
    case StoreOp::kCompareSet:
      return compare_set(request);
    case StoreOp::kDelete:
      reply.number = static_cast<int64_t>(values_.erase(request.keys[0]));
      return reply;
    case StoreOp::kCheck:
      reply.number = first_missing(request.keys, 0) == request.keys.size() ? 1 : 0;
      return reply;
    case StoreOp::kNumKeys:
      reply.number = std::ssize(values_);
      return reply;
  }
  return refusal(request, StoreStatus::kInvalid, "unknown operation");
}

StoreReply KeyValueStore::reply_to_present(const StoreRequest& request) const {
  StoreReply reply = ok(request);
  if (request.op == StoreOp::kGet) {
    for (const std::string& key : request.keys) reply.values.push_back(values_.at(key));
  }
  return reply;
}

// As in c10d: an absent key matches an empty expectation; without a match an absent key answers with the expectation.
StoreReply KeyValueStore::compare_set(const StoreRequest& request) {
  const std::string& expected = request.values[0];
  const std::string& desired = request.values[1];
  const auto it = values_.find(request.keys[0]);
  StoreReply reply = ok(request);
  if (it == values_.end()) {
    if (expected.empty()) values_[request.keys[0]] = desired;
    reply.values.push_back(expected.empty() ? desired : expected);
    return reply;
  }
  if (it->second == expected) it->second = desired;
  reply.values.push_back(it->second);
  return reply;
}

// Counters are kept as decimal text, so that get shows what add made.
StoreReply KeyValueStore::add(const StoreRequest& request) {
  int64_t number = 0;
  const auto it = values_.find(request.keys[0]);
  if (it != values_.end()) {
    const std::optional<int64_t> value = parse_number(it->second);
    if (!value) {
      return refusal(request, StoreStatus::kInvalid, "add to \"" + request.keys[0] + "\", whose value is not a number");
    }
    number = *value;
  }
  int64_t sum = 0;
  if (__builtin_add_overflow(number, request.amount, &sum)) {
    return refusal(request, StoreStatus::kInvalid, "add to \"" + request.keys[0] + "\" overflows 64 bits");
  }
  values_[request.keys[0]] = std::to_string(sum);
  StoreReply reply = ok(request);
  reply.number = sum;
  return reply;
}

void KeyValueStore::wait(StoreClient client, const StoreRequest& request, size_t missing, TimePoint now) {
  // Saturates: a timeout of "for ever" must not wrap around.
  const auto far = std::chrono::duration_cast<std::chrono::milliseconds>(TimePoint::max() - now);
  const TimePoint deadline = now + std::min(request.timeout, far);
  const WaitingId id{client, ++last_number_};
  waiting_.emplace(id, Waiting{.request = request, .deadline = deadline, .missing = missing});
  by_missing_key_[request.keys[missing]].insert(id);
  by_deadline_.emplace(deadline, id);
}

// Removes a waiting request from all three containers.
KeyValueStore::Waiting KeyValueStore::take(std::map<WaitingId, Waiting>::iterator at) {
  Waiting w = std::move(at->second);
  by_deadline_.erase({w.deadline, at->first});
  const auto same_key = by_missing_key_.find(w.request.keys[w.missing]);
  same_key->second.erase(at->first);
  if (same_key->second.empty()) by_missing_key_.erase(same_key);
  waiting_.erase(at);
  return w;
}

void KeyValueStore::answer_waiting_for(const std::string& key, std::vector<StoreAnswer>& answers) {
  const auto found = by_missing_key_.find(key);
  if (found == by_missing_key_.end()) return;
  const std::set<WaitingId> ids = std::move(found->second);
  by_missing_key_.erase(found);
  for (const WaitingId& id : ids) {
    const auto at = waiting_.find(id);
    Waiting& w = at->second;
    // The keys before w.missing were present when they were checked, and are not checked again at each new key: for W
    // keys that would take W * W look-ups. When none is missing any more, all are checked once, because one may have
    // been deleted.
    w.missing = first_missing(w.request.keys, w.missing);
    if (w.missing == w.request.keys.size()) w.missing = first_missing(w.request.keys, 0);
    if (w.missing < w.request.keys.size()) {
      by_missing_key_[w.request.keys[w.missing]].insert(id);
      continue;
    }
    answers.push_back({id.first, reply_to_present(w.request)});
    by_deadline_.erase({w.deadline, id});
    waiting_.erase(at);
  }
}

std::vector<StoreAnswer> KeyValueStore::expire(TimePoint now) {
  std::vector<StoreAnswer> answers;
  while (!by_deadline_.empty() && by_deadline_.begin()->first <= now) {
    const WaitingId id = by_deadline_.begin()->second;
    const Waiting w = take(waiting_.find(id));
    answers.push_back({id.first, refusal(w.request, StoreStatus::kTimeout,
                                         "after " + std::to_string(w.request.timeout.count()) + " ms nobody has set " +
                                             missing_text(w.request.keys, values_))});
  }
  return answers;
}

std::optional<TimePoint> KeyValueStore::next_deadline() const {
  if (by_deadline_.empty()) return std::nullopt;
  return by_deadline_.begin()->first;
}

void KeyValueStore::forget_connection(uint64_t connection) {
  const WaitingId first{{connection, std::numeric_limits<int>::min()}, 0};
  for (auto at = waiting_.lower_bound(first); at != waiting_.end() && at->first.first.connection == connection;) {
    take(at++);
  }
}

// The index of the first key, from `from` on, that has no value; keys.size() when all have one.
size_t KeyValueStore::first_missing(const std::vector<std::string>& keys, size_t from) const {
  const auto begin = keys.begin() + static_cast<std::ptrdiff_t>(from);
  const auto missing = std::find_if(begin, keys.end(), [&](const std::string& key) { return !values_.contains(key); });
  return static_cast<size_t>(missing - keys.begin());
}

}  // namespace lockstep
