#include "runner/models/sasrec/sasrec_data.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

#include "runner/base/check.h"

namespace lockstep {
namespace {

constexpr size_t kTrainEventsMin = 2;  // an input and its target
// Words of a row's first draws come from blocks 0 …; the retries of element e from blocks kRetryBase + 16 e ….
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

}  // namespace

Result<SasrecData> SasrecData::create(Dataset dataset) {
  SasrecData data;
  data.interactions_ = std::move(dataset.interactions);
  data.report_ = std::move(dataset.report);
  data.index_users();
  if (data.usable_users_.empty()) {
    return Error{ErrorCode::kInvalid,
                 data.report_.path + ": nothing to train on: none of the " + std::to_string(data.num_users()) +
                     " users has two training events and an item of the " + std::to_string(data.num_items()) +
                     " left to serve as a negative; bring more events, or lower --min_count"};
  }
  return data;
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
    const bool has_negatives = distinct_[u] < num_items();
    if (has_negatives && parts.train.size() >= kTrainEventsMin) usable_users_.push_back(user);
    if (has_negatives && parts.evaluated()) evaluable_users_.push_back(user);
  }
}

std::span<const int32_t> SasrecData::trained_on(int64_t user) const {
  const auto u = static_cast<size_t>(user);
  return {train_sorted_.data() + train_offsets_[u], static_cast<size_t>(distinct_[u])};
}

int64_t SasrecData::fill_train_row(const MicroBatchSpec& spec, int64_t index_in_batch, const TrainRow& row) const {
  const auto step = static_cast<uint32_t>(spec.step);
  const auto slot = static_cast<uint32_t>(spec.first_slot + index_in_batch);
  int64_t user = spec.samples[static_cast<size_t>(index_in_batch)] + 1;
  LOCKSTEP_CHECK(user >= 1 && user <= num_users(), "a sample is outside of the data set");
  if (!std::binary_search(usable_users_.begin(), usable_users_.end(), user)) {
    const PhiloxStream stream{spec.seed, static_cast<uint32_t>(RandomPlace::kReplacement), step, slot};
    user = usable_users_[stream.below(0, static_cast<uint32_t>(usable_users_.size()))];
  }
  const std::span<const int32_t> train = split(user).train;
  right_align(train.first(train.size() - 1), row.seq);
  right_align(train.subspan(1), row.pos);
  const PhiloxStream stream{spec.seed, static_cast<uint32_t>(RandomPlace::kNegatives), step, slot};
  draw_untrained_row(user, stream, row.neg);
  const size_t positives = std::min(train.size() - 1, row.pos.size());
  std::fill_n(row.neg.begin(), row.neg.size() - positives, 0);
  return static_cast<int64_t>(positives);
}

std::vector<int64_t> SasrecData::evaluation_users(int64_t limit, uint64_t seed) const {
  std::vector<int64_t> users = evaluable_users_;
  if (limit == 0 || limit >= evaluable_users()) return users;
  // A partial Fisher-Yates shuffle: the first `limit` places.
  const PhiloxStream stream{seed, static_cast<uint32_t>(RandomPlace::kEvalNegatives), 0, 0};  // user 0 does not exist
  for (int64_t i = 0; i < limit; ++i) {
    const auto left = static_cast<uint32_t>(evaluable_users() - i);
    const int64_t other = i + stream.below(static_cast<uint64_t>(i), left);
    std::swap(users[static_cast<size_t>(i)], users[static_cast<size_t>(other)]);
  }
  users.resize(static_cast<size_t>(limit));
  std::sort(users.begin(), users.end());
  return users;
}

void SasrecData::fill_evaluation_row(int64_t user, EvaluationPass pass, std::span<int64_t> seq) const {
  const UserSplit parts = split(user);
  if (pass == EvaluationPass::kValid) {
    right_align(parts.train, seq);
    return;
  }
  right_align(parts.train, seq.first(seq.size() - 1));
  seq.back() = parts.valid;
}

void SasrecData::draw_candidates(int64_t user, EvaluationPass pass, uint64_t seed,
                                 std::span<int64_t> candidates) const {
  const PhiloxStream stream{seed, static_cast<uint32_t>(RandomPlace::kEvalNegatives), static_cast<uint32_t>(pass),
                            static_cast<uint32_t>(user)};
  draw_untrained_row(user, stream, candidates);
}

void SasrecData::draw_untrained_row(int64_t user, const PhiloxStream& stream, std::span<int64_t> out) const {
  Philox4 words{};
  for (uint32_t i = 0; i < out.size(); ++i) {
    if (i % 4 == 0) words = stream.block(i / 4);
    out[i] = draw_untrained(user, stream, i, words.x[i % 4]);
  }
}

int64_t SasrecData::draw_untrained(int64_t user, const PhiloxStream& stream, uint32_t element,
                                   uint32_t first_word) const {
  const std::span<const int32_t> trained = trained_on(user);
  const auto is_trained = [&](int64_t item) {
    return std::binary_search(trained.begin(), trained.end(), static_cast<int32_t>(item));
  };
  int64_t item = 1 + below(first_word, num_items());
  for (uint32_t retry = 0; is_trained(item) && retry < kRetryBlocks * 4; ++retry) {
    const uint64_t block = kRetryBase + element * kRetryBlocks;
    item = 1 + below(stream.word(block * 4 + retry), num_items());
  }
  // So many hits in a row happen only to users who know nearly every item: take the next one that is free.
  while (is_trained(item)) item = item % num_items() + 1;
  return item;
}

}  // namespace lockstep
