// SasrecData: the interactions in the form that SASRec needs: training sequences, items that may be drawn as negatives,
// and users to evaluate. It also draws the negatives.
//
// Role: prepares the rows of batches and evaluations that become the model's input tensors. All draws are pure
// functions of (seed, step or pass, slot or user, element).
// Samples: sample s is user s + 1 (users are numbered from 1).
// Threads: const after construction.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runner/base/json.h"
#include "runner/base/philox.h"
#include "runner/base/result.h"
#include "runner/data/interactions.h"
#include "runner/models/sasrec/sasrec_flags.h"
#include "runner/models/workload.h"

namespace lockstep {

// Which held-out item the model has to rank.
enum class EvaluationPass : uint32_t { kValid = 0, kTest = 1 };

// The settings of data and evaluation that differ between SASRec and TiSASRec.
struct SequenceProtocol {
  bool has_times = false;
  TimeUnit time_unit = TimeUnit::kUser;
  int64_t evaluation_events_min = 4;  // users with fewer events are not evaluated; all their events are trained on
  // Whether the drawn candidates leave out the user's held-out items: the validation item, and in the test pass also
  // the test item.
  bool excludes_held_out = false;
};
SequenceProtocol protocol_of(const SasrecOptions& options);

class SasrecData {
 public:
  // Errors (kInvalid): no user has two training events and an item left to draw as a negative; with times: the file has
  // no timestamps, or a negative one.
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
  // The relative times of all events of a user: round((t - the user's first t) / unit) + 1, so that 0 is free for
  // padding. Empty without times.
  [[nodiscard]] std::span<const int64_t> times_of(int64_t user) const;
  // The unit that the file's timestamps were found to have, for example "milliseconds"; empty for seconds.
  [[nodiscard]] const std::string& timestamp_unit() const { return timestamp_unit_; }
  // Of everything that was read: who chose what and when, and the items' ids.
  [[nodiscard]] const std::string& sha256() const { return sha256_; }

  // An item's number is its row in the model. In a checkpoint's progress, kItemsField holds Dataset::items_sha256.
  static constexpr const char* kItemsField = "items_sha256";
  [[nodiscard]] const std::string& items_sha256() const { return items_sha256_; }
  // Whether the items have the numbers that they had when a checkpoint with this progress (Workload::progress_state)
  // was written; one of an earlier version, without the field, passes. Error (kInvalid): a sentence to follow the
  // checkpoint's path.
  [[nodiscard]] Status check_item_numbers(const Json& progress) const;

  // Fills one training row. Each span has `maxlen` entries, right-aligned with zeros on the left: inputs s_t, positives
  // s_{t+1}, and one negative per positive, drawn uniformly from the items that are not among the user's training
  // items. A user who cannot be trained on is replaced by a random one who can. Returns the number of positives.
  struct TrainRow {
    std::span<int64_t> seq;
    std::span<int64_t> pos;
    std::span<int64_t> neg;
    std::span<int64_t> times = {};  // the times of the inputs; an empty span is not filled
  };
  int64_t fill_train_row(const BatchShare& spec, int64_t index_in_batch, const TrainRow& row) const;

  // The users to evaluate, ascending; at most `limit` of them (0: all), drawn at random with `seed`.
  [[nodiscard]] std::vector<int64_t> evaluation_users(int64_t limit, uint64_t seed) const;
  // Fills the input of an evaluation: the user's training items, in the test pass followed by the validation item.
  // `times`: the times of the input; an empty span is not filled.
  void fill_evaluation_row(int64_t user, EvaluationPass pass, std::span<int64_t> seq,
                           std::span<int64_t> times = {}) const;
  // All items of a user in the order of time, from which a recommendation is made.
  [[nodiscard]] std::span<const int32_t> history(int64_t user) const { return interactions_.items_of(user); }
  // Fills the input of a recommendation: the user's newest items. `times`: as above.
  void fill_history_row(int64_t user, std::span<int64_t> seq, std::span<int64_t> times = {}) const;
  // Draws the candidates that compete with the held-out item: with replacement, uniformly from the items that are not
  // among the user's training items. The held-out items may be among them, unless the protocol excludes them.
  void draw_candidates(int64_t user, EvaluationPass pass, uint64_t seed, std::span<int64_t> candidates) const;

  // The user's distinct training items, ascending.
  [[nodiscard]] std::span<const int32_t> trained_on(int64_t user) const;

 private:
  explicit SasrecData(const SequenceProtocol& protocol) : protocol_(protocol) {}
  [[nodiscard]] std::string digest() const;
  Status make_times_relative();
  void index_users();

  // The items that a draw avoids: the user's training items, and up to two held-out ones (0: none).
  struct Avoided {
    std::span<const int32_t> trained;
    int64_t held_out[2] = {0, 0};
    [[nodiscard]] bool contains(int64_t item) const;
  };
  // Draws uniformly from the items that are not avoided: first with `first_word`; when that gives an avoided item, with
  // further words of the stream.
  [[nodiscard]] int64_t draw_other(const Avoided& avoided, const PhiloxStream& stream, uint32_t element,
                                   uint32_t first_word) const;
  void draw_other_row(const Avoided& avoided, const PhiloxStream& stream, std::span<int64_t> out) const;

  SequenceProtocol protocol_;
  std::string timestamp_unit_;
  std::string sha256_;
  std::string items_sha256_;

  Interactions interactions_;
  InteractionsReport report_;
  std::vector<int64_t> train_offsets_;  // user u: [train_offsets_[u], train_offsets_[u] + distinct_[u])
  std::vector<int32_t> train_sorted_;
  std::vector<int32_t> distinct_;
  std::vector<int64_t> usable_users_;
  std::vector<int64_t> evaluable_users_;
};

}  // namespace lockstep
