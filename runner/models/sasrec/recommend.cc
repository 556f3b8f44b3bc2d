#include "runner/models/sasrec/recommend.h"

#include <ATen/Parallel.h>
#include <torch/types.h>

#include <algorithm>
#include <cstdio>
#include <iterator>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "runner/base/clock.h"
#include "runner/base/json.h"
#include "runner/base/plural.h"
#include "runner/checkpoint/reader.h"
#include "runner/data/dataset.h"
#include "runner/data/next_line.h"
#include "runner/formats/open_text.h"
#include "runner/models/best_scores.h"
#include "runner/models/recommended_rows.h"
#include "runner/models/sasrec/recommend_flags.h"
#include "runner/models/sasrec/sasrec_data.h"
#include "runner/models/sasrec/sasrec_evaluation.h"
#include "runner/models/sasrec/sasrec_flags.h"
#include "runner/models/sasrec/sequence_model.h"
#include "runner/models/sasrec/tisasrec_model.h"

namespace lockstep {
namespace {

constexpr const char* kItemTable = "item_emb.weight";
constexpr float kNoCandidate = -std::numeric_limits<float>::infinity();
constexpr size_t kExampleIds = 3;
constexpr uint64_t kUsersBytesMax = uint64_t{1} << 30;
constexpr size_t kShownIdBytes = 80;
// The number of users in a batch is chosen so that the largest tensor stays within kFloatsMax floats, 256 MiB.
constexpr int64_t kFloatsMax = int64_t{1} << 26;
constexpr int64_t kUsersAtOnceMax = 256;

std::string quote_id(std::string_view text) {
  return "\"" + std::string(text.substr(0, kShownIdBytes)) + (text.size() > kShownIdBytes ? "…" : "") + "\"";
}

// The numbers of the users to recommend for.
class UserChoice {
 public:
  UserChoice(const SasrecData& data, const OriginalIds& ids) : data_(data), ids_(ids) {}

  std::optional<Failure> choose(FileSystem& fs, const RecommendOptions& options) {
    if (!options.user.empty()) return choose_one(options.user);
    if (!options.users.empty()) return choose_from(fs, options.users);
    for (int64_t user = 1; user <= data_.num_users(); ++user) {
      if (!data_.history(user).empty()) users_.push_back(user);
    }
    return std::nullopt;
  }
  [[nodiscard]] const std::vector<int64_t>& users() const { return users_; }

 private:
  std::optional<Failure> choose_one(const std::string& id) {
    for (int64_t user = 1; user <= data_.num_users(); ++user) {
      if (ids_.id(user) == id && !data_.history(user).empty()) users_.push_back(user);
    }
    if (users_.empty()) return usage_failure("--user " + quote_id(id) + unknown());
    return std::nullopt;
  }

  std::optional<Failure> choose_from(FileSystem& fs, const std::string& path) {
    Result<std::string> bytes = read_file(fs, path, kUsersBytesMax);  // it may be a pipe
    if (!bytes.ok()) {
      return data_failure("--users: " + bytes.error().message + "; expected a file with one user's id on each line");
    }
    const Result<OpenedText> opened = decode_text(std::move(*bytes), path, kUsersBytesMax);
    if (!opened.ok()) return data_failure("--users " + opened.error().message);
    std::unordered_map<std::string_view, int64_t> numbers;
    for (int64_t user = 1; user <= data_.num_users(); ++user) {
      if (!data_.history(user).empty()) numbers.emplace(ids_.id(user), user);
    }
    std::string_view rest = opened->text;
    for (int64_t line = 1; !rest.empty(); ++line) {
      const std::string_view id = next_line(rest);
      if (id.empty()) continue;
      const auto found = numbers.find(id);
      if (found == numbers.end())
        return data_failure(path + ":" + std::to_string(line) + ": user " + quote_id(id) + unknown());
      users_.push_back(found->second);
    }
    if (users_.empty()) return data_failure("--users " + path + " is empty: expected one user's id on each line");
    return std::nullopt;
  }

  // The rest of the message about an unknown id.
  [[nodiscard]] std::string unknown() const {
    std::string examples;
    int64_t known = 0;
    size_t shown = 0;
    for (int64_t user = 1; user <= data_.num_users(); ++user) {
      if (data_.history(user).empty()) continue;
      ++known;
      if (shown == kExampleIds) continue;
      examples += (shown++ == 0 ? "" : ", ") + quote_id(ids_.id(user));
    }
    const InteractionsReport& report = data_.report();
    std::string text =
        " is not in " + report.path + ", which has " + std::to_string(known) + " users with ids such as " + examples;
    if (report.dropped_users > 0) {
      text += "; " + std::to_string(report.dropped_users) + " users with fewer than " +
              std::to_string(report.min_count) + " lines are left out (--min_count)";
    }
    return text;
  }

  const SasrecData& data_;
  const OriginalIds& ids_;
  std::vector<int64_t> users_;
};

class Recommender {
 public:
  Recommender(const SequenceModel& model, const SasrecData& data, const SasrecOptions& shape,
              const RecommendOptions& options)
      : model_(model), data_(data), maxlen_(shape.maxlen), options_(options) {
    std::vector<bool> is_chosen(static_cast<size_t>(data.num_items()) + 1);
    for (int64_t user = 1; user <= data.num_users(); ++user) {
      for (const int32_t item : data.history(user)) is_chosen[static_cast<size_t>(item)] = true;
    }
    // The ids of `user item` files are used as item numbers, which may have gaps: a number that no user chose is not an
    // item.
    for (int64_t item = 1; item <= data.num_items(); ++item) {
      if (!is_chosen[static_cast<size_t>(item)]) absent_.push_back(item);
    }
    const int64_t relations = data.has_times() ? shape.tisasrec.time_span + 1 : 0;
    const int64_t floats = std::max(
        {data.num_items() + 1, shape.num_heads * maxlen_ * std::max(maxlen_, relations), maxlen_ * shape.hidden_units});
    users_at_once_ = std::clamp<int64_t>(kFloatsMax / floats, 1, kUsersAtOnceMax);
  }

  [[nodiscard]] int64_t items() const { return data_.num_items() - static_cast<int64_t>(absent_.size()); }
  [[nodiscard]] size_t users_at_once() const { return static_cast<size_t>(users_at_once_); }

  // For each user the best items, with their ids. Those of `ids` are borrowed.
  [[nodiscard]] std::vector<std::vector<Recommended>> rows_of(std::span<const int64_t> users,
                                                              const OriginalIds& ids) const {
    const at::Tensor scores_BI =
        score_all_items(model_, data_, users, maxlen_,
                        [&](int64_t user, auto seq, auto times) { data_.fill_history_row(user, seq, times); });
    const auto width = static_cast<size_t>(scores_BI.size(1));
    auto* const scores = scores_BI.mutable_data_ptr<float>();
    std::vector<std::vector<Recommended>> rows(users.size());
    at::parallel_for(0, static_cast<int64_t>(users.size()), 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const auto index = static_cast<size_t>(i);
        rows[index] = best_of(users[index], std::span(scores + index * width, width), ids);
      }
    });
    return rows;
  }

 private:
  [[nodiscard]] std::vector<Recommended> best_of(int64_t user, std::span<float> scores, const OriginalIds& ids) const {
    scores[0] = kNoCandidate;  // padding
    for (const int64_t item : absent_) scores[static_cast<size_t>(item)] = kNoCandidate;
    if (options_.exclude_seen) {
      for (const int32_t item : data_.history(user)) scores[static_cast<size_t>(item)] = kNoCandidate;
    }
    const auto is_candidate = [&](size_t item) { return scores[item] > kNoCandidate; };
    std::vector<Recommended> best;
    for (const int32_t item : best_scores(scores, options_.topk, is_candidate)) {
      best.push_back({.id = ids.id(item), .title = {}, .score = scores[static_cast<size_t>(item)]});
    }
    return best;
  }

  const SequenceModel& model_;
  const SasrecData& data_;
  int64_t maxlen_;
  const RecommendOptions& options_;
  std::vector<int64_t> absent_;
  int64_t users_at_once_ = 1;
};

// Compares the items of weights and data set, so that a wrong data set is not reported as a wrong flag, and none gets
// the scores of another. A file of weights alone tells only how many items there were.
std::optional<Failure> check_items(const TaskInput& input, const SasrecData& data) {
  const auto table = std::find_if(input.weights.begin(), input.weights.end(),
                                  [](const NamedTensor& tensor) { return tensor.name == kItemTable; });
  if (table == input.weights.end() || table->tensor.dim() == 0) return std::nullopt;  // copy_tensors reports it
  const int64_t trained = table->tensor.size(0) - 1;
  if (trained != data.num_items()) {
    return data_failure(data.report().path + " has " + std::to_string(data.num_items()) + " items and " +
                        input.weights_path + " was trained on " + std::to_string(trained) +
                        ": give the data set that it was trained on (--dataset, and --min_count as then)");
  }
  const Status numbers = data.check_item_numbers(input.progress.value("workload", Json::object()));
  if (!numbers.ok()) return data_failure(numbers.error().with_context(input.weights_path).message);
  return std::nullopt;
}

std::optional<Failure> write_rows(const TaskInput& input, const Recommender& recommender,
                                  const std::vector<int64_t>& users, const OriginalIds& user_ids,
                                  const OriginalIds& item_ids) {
  RecommendedRows rows(options_of<RecommendOptions>(input.config).format, /*has_titles=*/false, input.out);
  for (size_t begin = 0; begin < users.size(); begin += recommender.users_at_once()) {
    const std::span<const int64_t> chunk =
        std::span(users).subspan(begin, std::min(recommender.users_at_once(), users.size() - begin));
    const std::vector<std::vector<Recommended>> items = recommender.rows_of(chunk, item_ids);
    for (size_t i = 0; i < chunk.size(); ++i) rows.add_items(user_ids.id(chunk[i]), items[i]);
    if (auto failure = rows.write()) return failure;
  }
  return std::nullopt;
}

}  // namespace

std::optional<Failure> recommend(const TaskInput& input) {
  const at::NoGradGuard no_grad;
  const auto began = now();
  const SasrecOptions& shape = options_of<SasrecOptions>(input.config);
  const RecommendOptions& options = options_of<RecommendOptions>(input.config);
  Result<Dataset> dataset =
      load_dataset(input.fs, shape.dataset, shape.data_dir,
                   {.min_count = shape.min_count, .max_bad_lines = shape.max_bad_lines, .original_ids = true});
  if (!dataset.ok()) return data_failure(dataset.error().message);
  const OriginalIds user_ids = std::move(dataset->users);
  const OriginalIds item_ids = std::move(dataset->items);
  const Result<SasrecData> data = SasrecData::create(std::move(dataset).value(), protocol_of(shape));
  if (!data.ok()) return data_failure(data.error().message);

  if (auto failure = check_items(input, *data)) return failure;
  UserChoice choice(*data, user_ids);
  if (auto failure = choice.choose(input.fs, options)) return failure;
  const std::unique_ptr<SequenceModel> model = make_sequence_model(shape, data->num_items(), input.device);
  NamedTensors weights = input.weights;
  if (shape.variant == SequenceVariant::kTisasrec) {
    const std::string cut = cut_time_table(weights, shape.tisasrec.time_span);
    if (!cut.empty()) input.log(input.weights_path + ": " + cut + "; the others cannot be reached");
  }
  const Status copied = copy_tensors(weights, model->parameters(), input.weights_path);
  if (!copied.ok()) return usage_failure(copied.error().message);
  const Recommender recommender(*model, *data, shape, options);
  if (options.topk > recommender.items()) {
    return usage_failure("--topk " + std::to_string(options.topk) + " is above the " +
                         std::to_string(recommender.items()) + " items of " + data->report().path +
                         ": give a smaller one");
  }

  if (auto failure = write_rows(input, recommender, choice.users(), user_ids, item_ids)) return failure;
  const size_t users = choice.users().size();
  input.log(plural(users, "user") + ", the best " + std::to_string(options.topk) + " of " +
            std::to_string(recommender.items()) + " items of " + data->report().path + ", in " + seconds_since(began));
  return std::nullopt;
}

}  // namespace lockstep
