#include "runner/recovery/store.h"

#include <algorithm>
#include <charconv>

#include "runner/contract/generation.h"

namespace lockstep {
namespace {

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
      return keys == 1 && values == 1 ? "" : "set takes one key and one value";
    case StoreOp::kCompareSet:
      return keys == 1 && values == 2 ? "" : "compare_set takes one key, the expected and the desired value";
    case StoreOp::kGet:
    case StoreOp::kAdd:
    case StoreOp::kDelete:
      return keys == 1 ? "" : "get, add and delete take one key";
    case StoreOp::kCheck:
    case StoreOp::kWait:
    case StoreOp::kNumKeys:
      return "";
  }
  return "unknown operation";
}

std::string joined(const std::vector<std::string>& keys) {
  std::string text;
  for (const std::string& key : keys) text += (text.empty() ? "" : ", ") + key;
  return text;
}

}  // namespace

std::vector<StoreAnswer> KeyValueStore::begin_generation(uint64_t generation) {
  std::vector<StoreAnswer> answers;
  for (const Waiting& w : waiting_) {
    answers.push_back({w.client, refusal(w.request, StoreStatus::kStale, "the generation has ended")});
  }
  waiting_.clear();
  values_.clear();
  generation_ = generation;
  return answers;
}

std::vector<StoreAnswer> KeyValueStore::apply(int client, const StoreRequest& request, TimePoint now) {
  if (request.generation != generation_) {
    return {{client, refusal(request, StoreStatus::kStale,
                             "the request is of generation " + generation_text(request.generation) +
                                 ", the store of generation " + generation_text(generation_))}};
  }
  if (const std::string problem = shape_problem(request); !problem.empty()) {
    return {{client, refusal(request, StoreStatus::kInvalid, problem)}};
  }
  const bool blocks = request.op == StoreOp::kGet || request.op == StoreOp::kWait;
  if (blocks && !has_all(request.keys)) {
    // Saturates: a timeout of "for ever" must not wrap around.
    const auto far = std::chrono::duration_cast<std::chrono::milliseconds>(TimePoint::max() - now);
    waiting_.push_back({client, request, now + std::min(request.timeout, far)});
    return {};
  }
  std::vector<StoreAnswer> answers{{client, execute(request)}};
  answer_waiting(answers);
  return answers;
}

StoreReply KeyValueStore::execute(const StoreRequest& request) {
  StoreReply reply = ok(request);
  switch (request.op) {
    case StoreOp::kSet:
      values_[request.keys[0]] = request.values[0];
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
      reply.number = has_all(request.keys) ? 1 : 0;
      return reply;
    case StoreOp::kNumKeys:
      reply.number = std::ssize(values_);
      return reply;
  }
  return refusal(request, StoreStatus::kInvalid, "unknown operation");
}

StoreReply KeyValueStore::reply_to_present(const StoreRequest& request) const {
  StoreReply reply = ok(request);
  if (request.op == StoreOp::kGet) reply.values.push_back(values_.at(request.keys[0]));
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
    const std::string& text = it->second;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (error != std::errc() || end != text.data() + text.size()) {
      return refusal(request, StoreStatus::kInvalid, "add to \"" + request.keys[0] + "\", which is no number");
    }
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

std::vector<StoreAnswer> KeyValueStore::expire(TimePoint now) {
  std::vector<StoreAnswer> answers;
  std::erase_if(waiting_, [&](const Waiting& w) {
    if (now < w.deadline) return false;
    std::vector<std::string> missing;
    for (const std::string& key : w.request.keys) {
      if (!values_.contains(key)) missing.push_back(key);
    }
    answers.push_back({w.client, refusal(w.request, StoreStatus::kTimeout,
                                         "after " + std::to_string(w.request.timeout.count()) + " ms nobody has set " +
                                             joined(missing))});
    return true;
  });
  return answers;
}

std::optional<KeyValueStore::TimePoint> KeyValueStore::next_deadline() const {
  const auto first = std::min_element(waiting_.begin(), waiting_.end(),
                                      [](const Waiting& a, const Waiting& b) { return a.deadline < b.deadline; });
  if (first == waiting_.end()) return std::nullopt;
  return first->deadline;
}

void KeyValueStore::forget_client(int client) {
  std::erase_if(waiting_, [&](const Waiting& w) { return w.client == client; });
}

bool KeyValueStore::has_all(const std::vector<std::string>& keys) const {
  return std::all_of(keys.begin(), keys.end(), [&](const std::string& key) { return values_.contains(key); });
}

void KeyValueStore::answer_waiting(std::vector<StoreAnswer>& answers) {
  std::erase_if(waiting_, [&](const Waiting& w) {
    if (!has_all(w.request.keys)) return false;
    answers.push_back({w.client, reply_to_present(w.request)});
    return true;
  });
}

}  // namespace lockstep
