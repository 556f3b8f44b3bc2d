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
#include <string>
#include <vector>

#include "runner/base/philox.h"
#include "runner/base/result.h"
#include "runner/data/interactions.h"
#include "runner/models/sasrec/sasrec_flags.h"
#include "runner/models/workload.h"

namespace lockstep {

// Which held-out item is asked for.
enum class EvaluationPass : uint32_t { kValid = 0, kTest = 1 };

// What SASRec and TiSASRec do not have in common.
struct SequenceProtocol {
  bool has_times = false;
  TimeUnit time_unit = TimeUnit::kUser;
  int64_t evaluation_events_min = 4;  // users with fewer are trained on whole
  // Are the held-out items that were shown already or are asked for left out of the drawn candidates?
  bool excludes_held_out = false;
};
SequenceProtocol protocol_of(const SasrecOptions& options);

class SasrecData {
 public:
  // kInvalid: no user has two training events and an item left to draw as a negative; with times: the file has none, or
  // one that is no time.
  static Result<SasrecData> create(Dataset dataset, const SequenceProtocol& protocol);

  [[nodiscard]] const InteractionsReport& report() const { return report_; }
  [[nodiscard]] int64_t num_users() const { return interactions_.num_users; }
  [[nodiscard]] int64_t num_items() const { return interactions_.num_items; }
  [[nodiscard]] int64_t train_events() const { return static_cast<int64_t>(train_sorted_.size()); }
  [[nodiscard]] int64_t usable_users() const { return static_cast<int64_t>(usable_users_.size()); }
  [[nodiscard]] int64_t evaluable_users() const { return static_cast<int64_t>(evaluable_users_.size()); }
  [[nodiscard]] UserSplit split(int64_t user) const {
    return leave_one_out(interactions_, user, protocol_.evaluation_events_min);
  }
  [[nodiscard]] bool has_times() const { return protocol_.has_times; }
  // Of all events of a user: round((t - the user's first) / unit) + 1, so that 0 is padding. Empty without times.
  [[nodiscard]] std::span<const int64_t> times_of(int64_t user) const;
  // What the file's timestamps were taken for, where it is not seconds: "milliseconds"; else empty.
  [[nodiscard]] const std::string& timestamp_unit() const { return timestamp_unit_; }

  // One training row of `maxlen` entries each, right-aligned, zeros on the left: inputs s_t, positives s_{t+1}, and one
  // negative per positive, uniform over the items that the user did not train on. A user who cannot be trained on is
  // replaced by a random one who can. Returns the number of positives.
  struct TrainRow {
    std::span<int64_t> seq;
    std::span<int64_t> pos;
    std::span<int64_t> neg;
    std::span<int64_t> times = {};  // of the inputs; empty: not asked for
  };
  int64_t fill_train_row(const BatchShare& spec, int64_t index_in_batch, const TrainRow& row) const;

  // The users to evaluate, ascending; at most `limit` of them (0 = all), chosen by the seed.
  [[nodiscard]] std::vector<int64_t> evaluation_users(int64_t limit, uint64_t seed) const;
  // The input of an evaluation: the training items, for the test pass followed by the validation item.
  // `times`: of the input; empty: not asked for.
  void fill_evaluation_row(int64_t user, EvaluationPass pass, std::span<int64_t> seq,
                           std::span<int64_t> times = {}) const;
  // All items of a user, in the order of time: what a recommendation is made from.
  [[nodiscard]] std::span<const int32_t> history(int64_t user) const { return interactions_.items_of(user); }
  // The input of a recommendation: the newest of them. `times`: as above.
  void fill_history_row(int64_t user, std::span<int64_t> seq, std::span<int64_t> times = {}) const;
  // Candidates that compete with the held-out item: uniform over the items that the user did not train on, with
  // replacement; the held-out items may be among them, unless the protocol excludes them.
  void draw_candidates(int64_t user, EvaluationPass pass, uint64_t seed, std::span<int64_t> candidates) const;

  // Distinct items that the user trained on, ascending.
  [[nodiscard]] std::span<const int32_t> trained_on(int64_t user) const;

 private:
  explicit SasrecData(const SequenceProtocol& protocol) : protocol_(protocol) {}
  Status make_times_relative();
  void index_users();

  // What a draw avoids: the items that a user trained on, and up to two others (0: none).
  struct Avoided {
    std::span<const int32_t> trained;
    int64_t held_out[2] = {0, 0};
    [[nodiscard]] bool contains(int64_t item) const;
  };
  // Uniform over all other items: `first_word`, and on a hit further words of the stream.
  [[nodiscard]] int64_t draw_other(const Avoided& avoided, const PhiloxStream& stream, uint32_t element,
                                   uint32_t first_word) const;
  void draw_other_row(const Avoided& avoided, const PhiloxStream& stream, std::span<int64_t> out) const;

  SequenceProtocol protocol_;
  std::string timestamp_unit_;

  Interactions interactions_;
  InteractionsReport report_;
  std::vector<int64_t> train_offsets_;  // user u: [train_offsets_[u], train_offsets_[u] + distinct_[u])
  std::vector<int32_t> train_sorted_;
  std::vector<int32_t> distinct_;
  std::vector<int64_t> usable_users_;
  std::vector<int64_t> evaluable_users_;
};

}  // namespace lockstep
