#include "runner/models/sasrec/sasrec_data.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <utility>

#include "runner/base/check.h"
#include "runner/base/sha256.h"

namespace lockstep {
namespace {

constexpr size_t kTrainEventsMin = 2;  // an input and its target
// A row's first draws use the stream's blocks from 0 on; the retries of element e use the 16 blocks from
// kRetryBase + 16 e on.
constexpr uint32_t kRetryBase = 0x80000000U;
constexpr uint32_t kRetryBlocks = 16;

uint32_t below(uint32_t word, int64_t n) {
  return static_cast<uint32_t>((static_cast<uint64_t>(word) * static_cast<uint64_t>(n)) >> 32);
}

// Copies the last items of `source` to the end of `row`; zeros before them.
template <typename Range>
void right_align(const Range& source, std::span<int64_t> row) {
  const size_t n = std::min(source.size(), row.size());
  std::fill(row.begin(), row.end() - static_cast<std::ptrdiff_t>(n), 0);
  std::copy(source.end() - static_cast<std::ptrdiff_t>(n), source.end(), row.end() - static_cast<std::ptrdiff_t>(n));
}

// A unit of timestamps other than seconds.
struct TimestampUnit {
  int64_t from;  // most timestamps are at least this; in seconds, the smallest `from` is the year 5138
  int64_t per_second;
  const char* name;
};
constexpr TimestampUnit kTimestampUnits[] = {{100'000'000'000'000'000, 1'000'000'000, "nanoseconds"},
                                             {100'000'000'000'000, 1'000'000, "microseconds"},
                                             {100'000'000'000, 1'000, "milliseconds"}};

// The smallest difference between successive timestamps that is not 0; 1 when all are equal.
int64_t smallest_gap(std::span<const int64_t> ascending) {
  int64_t gap = 0;
  for (size_t i = 1; i < ascending.size(); ++i) {
    const int64_t apart = ascending[i] - ascending[i - 1];
    if (apart > 0 && (gap == 0 || apart < gap)) gap = apart;
  }
  return std::max<int64_t>(gap, 1);
}

int64_t seconds_of(TimeUnit unit) {
  switch (unit) {
    case TimeUnit::kMinute:
      return 60;
    case TimeUnit::kHour:
      return 3600;
    case TimeUnit::kDay:
      return 86400;
    case TimeUnit::kSecond:
    case TimeUnit::kUser:
      return 1;
  }
  return 1;
}

}  // namespace

SequenceProtocol protocol_of(const SasrecOptions& options) {
  if (options.variant == SequenceVariant::kSasrec) return {};
  return {.has_times = !options.tisasrec.no_time,
          .time_unit = options.tisasrec.time_unit,
          .evaluation_events_min = 3,
          .excludes_held_out = true};
}

Result<SasrecData> SasrecData::create(Dataset dataset, const SequenceProtocol& protocol) {
  SasrecData data(protocol);
  data.interactions_ = std::move(dataset.interactions);
  data.report_ = std::move(dataset.report);
  data.items_sha256_ = std::move(dataset.items_sha256);
  data.sha256_ = data.digest();
  if (protocol.has_times) TRY(data.make_times_relative());
  data.index_users();
  if (data.usable_users_.empty()) {
    return Error{ErrorCode::kInvalid,
                 data.report_.path + ": nothing to train on: none of the " + std::to_string(data.num_users()) +
                     " users has two training events and an item of the " + std::to_string(data.num_items()) +
                     " left to serve as a negative; use a data set with more events, or lower --min_count"};
  }
  return data;
}

std::string SasrecData::digest() const {
  Sha256 digest;
  digest.update(items_sha256_.data(), items_sha256_.size());
  const auto add = [&](const auto& values) { digest.update(values.data(), values.size() * sizeof(values[0])); };
  add(interactions_.offsets);
  add(interactions_.items);
  add(interactions_.timestamps);
  return digest.hex_digest();
}

Status SasrecData::check_item_numbers(const Json& progress) const {
  const auto then = progress.find(kItemsField);
  if (then == progress.end() || *then == Json(items_sha256_)) return {};
  return invalid("it was trained with other item numbers than " + report_.path +
                 " has now: items are numbered in the order of their first lines, and a number is a row of the item "
                 "table. Give the file that it was trained on (new lines may be appended to it), or train anew in "
                 "another --train_dir");
}

// Works in place: the absolute times are not needed afterwards.
Status SasrecData::make_times_relative() {
  std::vector<int64_t>& times = interactions_.timestamps;
  if (times.empty()) {
    return Error{ErrorCode::kInvalid,
                 report_.path + " (" + to_string(report_.format) +
                     ") has no timestamps, and --variant tisasrec learns from them: use a file with "
                     "timestamps, or give --no_time or --variant sasrec"};
  }
  const int64_t oldest = *std::min_element(times.begin(), times.end());
  if (oldest < 0) {
    return Error{ErrorCode::kInvalid, report_.path + ": found the timestamp " + std::to_string(oldest) +
                                          ", expected seconds since 1970: correct the file, or give --no_time"};
  }
  int64_t per_second = 1;
  for (const TimestampUnit& unit : kTimestampUnits) {
    // Most, not all: a few dates far in the future may mean "never".
    const auto count = std::count_if(times.begin(), times.end(), [&](int64_t time) { return time >= unit.from; });
    if (static_cast<size_t>(count) * 2 <= times.size()) continue;
    per_second = unit.per_second;
    timestamp_unit_ = unit.name;
    break;
  }
  for (int64_t user = 1; user <= num_users(); ++user) {
    const auto u = static_cast<size_t>(user);
    const auto begin = static_cast<size_t>(interactions_.offsets[u]);
    const auto end = static_cast<size_t>(interactions_.offsets[u + 1]);
    const std::span<int64_t> own(times.data() + begin, end - begin);
    if (own.empty()) continue;
    const int64_t unit =
        protocol_.time_unit == TimeUnit::kUser ? smallest_gap(own) : seconds_of(protocol_.time_unit) * per_second;
    const int64_t first = own.front();
    for (int64_t& time : own) {
      // Rounds half to even, like round() in the public implementation, which is in Python.
      time = static_cast<int64_t>(std::nearbyint(static_cast<double>(time - first) / static_cast<double>(unit))) + 1;
    }
  }
  return {};
}

std::span<const int64_t> SasrecData::times_of(int64_t user) const {
  if (!protocol_.has_times) return {};
  const auto u = static_cast<size_t>(user);
  const auto begin = static_cast<size_t>(interactions_.offsets[u]);
  return {interactions_.timestamps.data() + begin, static_cast<size_t>(interactions_.offsets[u + 1]) - begin};
}

void SasrecData::index_users() {
  const auto users = static_cast<size_t>(num_users());
  train_offsets_.assign(users + 2, 0);
  distinct_.assign(users + 1, 0);
  for (int64_t user = 1; user <= num_users(); ++user) {
    const UserSplit parts = split(user);
    const auto begin = train_sorted_.insert(train_sorted_.end(), parts.train.begin(), parts.train.end());
    std::sort(begin, train_sorted_.end());
    const auto u = static_cast<size_t>(user);
    distinct_[u] = static_cast<int32_t>(std::unique(begin, train_sorted_.end()) - begin);
    train_offsets_[u] = begin - train_sorted_.begin();
    const int64_t held_out = protocol_.excludes_held_out ? 2 : 0;
    const bool has_negatives = distinct_[u] + held_out < num_items();
    if (has_negatives && parts.train.size() >= kTrainEventsMin) usable_users_.push_back(user);
    if (has_negatives && parts.evaluated()) evaluable_users_.push_back(user);
  }
}

std::span<const int32_t> SasrecData::trained_on(int64_t user) const {
  const auto u = static_cast<size_t>(user);
  return {train_sorted_.data() + train_offsets_[u], static_cast<size_t>(distinct_[u])};
}

int64_t SasrecData::fill_train_row(const BatchShare& spec, int64_t index_in_batch, const TrainRow& row) const {
  const auto step = static_cast<uint32_t>(spec.step);
  const auto slot = static_cast<uint32_t>(spec.first_slot + index_in_batch);
  int64_t user = spec.samples[static_cast<size_t>(index_in_batch)] + 1;
  LOCKSTEP_CHECK(user >= 1 && user <= num_users(), "a sample is outside of the data set");
  if (!std::binary_search(usable_users_.begin(), usable_users_.end(), user)) {
    const PhiloxStream stream{spec.seed, static_cast<uint32_t>(RandomPurpose::kReplacement), step, slot};
    user = usable_users_[stream.below(0, static_cast<uint32_t>(usable_users_.size()))];
  }
  const std::span<const int32_t> train = split(user).train;
  right_align(train.first(train.size() - 1), row.seq);
  if (!row.times.empty()) right_align(times_of(user).first(train.size() - 1), row.times);
  right_align(train.subspan(1), row.pos);
  const PhiloxStream stream{spec.seed, static_cast<uint32_t>(RandomPurpose::kNegatives), step, slot};
  draw_other_row({.trained = trained_on(user)}, stream, row.neg);
  const size_t positives = std::min(train.size() - 1, row.pos.size());
  std::fill_n(row.neg.begin(), row.neg.size() - positives, 0);
  return static_cast<int64_t>(positives);
}

std::vector<int64_t> SasrecData::evaluation_users(int64_t limit, uint64_t seed) const {
  std::vector<int64_t> users = evaluable_users_;
  if (limit == 0 || limit >= evaluable_users()) return users;
  // A partial Fisher-Yates shuffle, which fills only the first `limit` places.
  const PhiloxStream stream{seed, static_cast<uint32_t>(RandomPurpose::kEvalNegatives), 0, 0};  // user 0 does not exist
  for (int64_t i = 0; i < limit; ++i) {
    const auto left = static_cast<uint32_t>(evaluable_users() - i);
    const int64_t other = i + stream.below(static_cast<uint64_t>(i), left);
    std::swap(users[static_cast<size_t>(i)], users[static_cast<size_t>(other)]);
  }
  users.resize(static_cast<size_t>(limit));
  std::sort(users.begin(), users.end());
  return users;
}

void SasrecData::fill_evaluation_row(int64_t user, EvaluationPass pass, std::span<int64_t> seq,
                                     std::span<int64_t> times) const {
  const UserSplit parts = split(user);
  const bool is_test = pass == EvaluationPass::kTest;
  right_align(parts.train, is_test ? seq.first(seq.size() - 1) : seq);
  if (is_test) seq.back() = parts.valid;
  if (!times.empty()) right_align(times_of(user).first(parts.train.size() + (is_test ? 1 : 0)), times);
}

void SasrecData::fill_history_row(int64_t user, std::span<int64_t> seq, std::span<int64_t> times) const {
  right_align(history(user), seq);
  if (!times.empty()) right_align(times_of(user), times);
}

void SasrecData::draw_candidates(int64_t user, EvaluationPass pass, uint64_t seed,
                                 std::span<int64_t> candidates) const {
  const PhiloxStream stream{seed, static_cast<uint32_t>(RandomPurpose::kEvalNegatives), static_cast<uint32_t>(pass),
                            static_cast<uint32_t>(user)};
  Avoided avoided{.trained = trained_on(user)};
  if (protocol_.excludes_held_out) {
    const UserSplit parts = split(user);
    avoided.held_out[0] = parts.valid;
    if (pass == EvaluationPass::kTest) avoided.held_out[1] = parts.test;
  }
  draw_other_row(avoided, stream, candidates);
}

void SasrecData::draw_other_row(const Avoided& avoided, const PhiloxStream& stream, std::span<int64_t> out) const {
  Philox4 words{};
  for (uint32_t i = 0; i < out.size(); ++i) {
    if (i % 4 == 0) words = stream.block(i / 4);
    out[i] = draw_other(avoided, stream, i, words.x[i % 4]);
  }
}

bool SasrecData::Avoided::contains(int64_t item) const {
  return item == held_out[0] || item == held_out[1] ||
         std::binary_search(trained.begin(), trained.end(), static_cast<int32_t>(item));
}

int64_t SasrecData::draw_other(const Avoided& avoided, const PhiloxStream& stream, uint32_t element,
                               uint32_t first_word) const {
  int64_t item = 1 + below(first_word, num_items());
  for (uint32_t retry = 0; avoided.contains(item) && retry < kRetryBlocks * 4; ++retry) {
    const uint64_t block = kRetryBase + element * kRetryBlocks;
    item = 1 + below(stream.word(block * 4 + retry), num_items());
  }
  // After that many failed retries, which happen only when nearly all items are avoided, take the next item that is
  // not.
  while (avoided.contains(item)) item = item % num_items() + 1;
  return item;
}

}  // namespace lockstep
