// SasrecData: the interactions as SASRec sees them: training sequences, what may be drawn as a negative, who is
// evaluated; and the draws themselves.
//
// Role: everything of a batch or an evaluation that happens before tensors reach the model. All draws are pure
// functions of (seed, step or pass, slot or user, element).
// Samples: sample s is user s + 1 (users are numbered from 1).
// Threads: const after construction.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "runner/base/philox.h"
#include "runner/base/result.h"
#include "runner/data/interactions.h"
#include "runner/models/workload.h"

namespace lockstep {

// Which held-out item is asked for.
enum class EvaluationPass : uint32_t { kValid = 0, kTest = 1 };

class SasrecData {
 public:
  // kInvalid: no user has two training events and an item left to draw as a negative.
  static Result<SasrecData> create(Dataset dataset);

  [[nodiscard]] const InteractionsReport& report() const { return report_; }
  [[nodiscard]] int64_t num_users() const { return interactions_.num_users; }
  [[nodiscard]] int64_t num_items() const { return interactions_.num_items; }
  [[nodiscard]] int64_t train_events() const { return static_cast<int64_t>(train_sorted_.size()); }
  [[nodiscard]] int64_t usable_users() const { return static_cast<int64_t>(usable_users_.size()); }
  [[nodiscard]] int64_t evaluable_users() const { return static_cast<int64_t>(evaluable_users_.size()); }
  [[nodiscard]] UserSplit split(int64_t user) const { return leave_one_out(interactions_, user); }

  // One training row of `maxlen` entries each, right-aligned, zeros on the left: inputs s_t, positives s_{t+1}, and one
  // negative per positive, uniform over the items that the user did not train on. A user who cannot be trained on is
  // replaced by a random one who can. Returns the number of positives.
  struct TrainRow {
    std::span<int64_t> seq;
    std::span<int64_t> pos;
    std::span<int64_t> neg;
  };
  int64_t fill_train_row(const MicroBatchSpec& spec, int64_t index_in_batch, const TrainRow& row) const;

  // The users to evaluate, ascending; at most `limit` of them (0 = all), chosen by the seed.
  [[nodiscard]] std::vector<int64_t> evaluation_users(int64_t limit, uint64_t seed) const;
  // The input of an evaluation: the training items, for the test pass followed by the validation item.
  void fill_evaluation_row(int64_t user, EvaluationPass pass, std::span<int64_t> seq) const;
  // Candidates that compete with the held-out item: uniform over the items that the user did not train on, with
  // replacement; the held-out items may be among them.
  void draw_candidates(int64_t user, EvaluationPass pass, uint64_t seed, std::span<int64_t> candidates) const;

  // Distinct items that the user trained on, ascending.
  [[nodiscard]] std::span<const int32_t> trained_on(int64_t user) const;

 private:
  SasrecData() = default;
  void index_users();

  // Uniform over the items that the user did not train on: `first_word`, and on a hit further words of the stream.
  [[nodiscard]] int64_t draw_untrained(int64_t user, const PhiloxStream& stream, uint32_t element,
                                       uint32_t first_word) const;
  void draw_untrained_row(int64_t user, const PhiloxStream& stream, std::span<int64_t> out) const;

  Interactions interactions_;
  InteractionsReport report_;
  std::vector<int64_t> train_offsets_;  // user u: [train_offsets_[u], train_offsets_[u] + distinct_[u])
  std::vector<int32_t> train_sorted_;
  std::vector<int32_t> distinct_;
  std::vector<int64_t> usable_users_;
  std::vector<int64_t> evaluable_users_;
};

}  // namespace lockstep
