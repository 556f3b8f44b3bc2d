#include "runner/models/gpt2rec/recommend_films.h"

#include <torch/types.h>

#include <algorithm>
#include <array>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runner/base/plural.h"
#include "runner/checkpoint/reader.h"
#include "runner/config/flag_table_builder.h"
#include "runner/models/best_scores.h"
#include "runner/models/gpt2rec/gpt2rec_evaluation.h"
#include "runner/models/gpt2rec/gpt2rec_flags.h"
#include "runner/models/gpt2rec/gpt2rec_workload.h"
#include "runner/models/gpt2rec/recommend_films_flags.h"
#include "runner/models/recommended_rows.h"

namespace lockstep {
namespace {

constexpr std::string_view kAdapterMark = ".lora_";
constexpr char kNew[] = "new";  // stands for the id of the new film

// A user to recommend films for.
struct Person {
  std::string name;  // an id, or the text of a new user
  int64_t id = -1;   // -1: a new user
};

// The words of `profile` that describe none of `users`, ids of `profiles`, which were trained on, and the words that
// do. Empty: there are none.
std::string remark_on_unknown_words(const UserProfile& profile, const std::vector<UserProfile>& profiles,
                                    const std::vector<int64_t>& users) {
  struct Field {
    const char* name;
    std::string UserProfile::*word;
  };
  std::string unknown;
  for (const Field& field : {Field{"gender", &UserProfile::gender}, Field{"age group", &UserProfile::age_group},
                             Field{"occupation", &UserProfile::occupation}}) {
    const std::string& word = profile.*field.word;
    std::set<std::string> known;
    for (const int64_t user : users) known.insert(profiles[static_cast<size_t>(user)].*field.word);
    if (word.empty() || known.contains(word)) continue;
    known.erase("");  // not described
    const std::string list = joined(known);
    unknown += (unknown.empty() ? "the " : "; nor the ") + std::string(field.name) + " " + word +
               " (known: " + (list.empty() ? "none" : list) + ")";
  }
  if (unknown.empty()) return "";
  return "none of the users that were trained on has " + unknown + ": nothing was learnt about that";
}

class FilmRecommender {
 public:
  FilmRecommender(const TaskInput& input, const RatingData& ratings, const Gpt2recWorkload& workload)
      : options_(options_of<RecommendFilmsOptions>(input.config)),
        ratings_(ratings),
        workload_(workload),
        device_(input.device),
        seen_(options_.exclude_seen ? ItemsOfUsers(workload.data().num_users(), ratings.ratings) : ItemsOfUsers()) {
    const RecommenderModel& model = workload.model();
    const RecommenderData& data = workload.data();
    texts_TW_ = workload.encode_all([] { return true; });
    film_terms_IH_ = workload.film_terms(texts_TW_);
    for (const Film& film : ratings.films) {
      is_candidate_.push_back(!film.title.empty() || !film.genres.empty());
      ids_.push_back(std::to_string(titles_.size()));
      titles_.push_back(film.title);
    }
    if (!options_.describes_film()) return;
    const Film film{.title = options_.title, .genres = genres_of(options_.genres)};
    const at::Tensor term_1H =
        model.item_term(model.items_unseen(ids_of(data.train_items()), vector_of(film_text(film))));
    film_terms_IH_ = at::cat({film_terms_IH_, term_1H});
    is_candidate_.push_back(true);
    ids_.emplace_back(kNew);
    titles_.push_back(options_.title);
  }

  std::optional<Failure> choose_people(const std::function<void(const std::string& line)>& log) {
    const std::vector<int64_t>& known = workload_.data().trained().users();
    if (!options_.user.empty()) {
      int64_t id = -1;
      const bool is_number = parse_whole(std::string_view(options_.user), id);
      if (!is_number || !std::binary_search(known.begin(), known.end(), id)) {
        return usage_failure("--user " + options_.user + " is not one of the " + std::to_string(known.size()) +
                             " users of " + ratings_.path + " with training ratings, whose ids are numbers such as " +
                             std::to_string(known.front()) + "; somebody new is described by --gender, --age and " +
                             "--occupation");
      }
      people_ = {{.name = options_.user, .id = id}};
    } else if (options_.describes_user()) {
      UserProfile profile{.gender = options_.gender == "F"   ? "Female"
                                    : options_.gender == "M" ? "Male"
                                                             : "",
                          .age_group = options_.age ? age_group_of(*options_.age) : "",
                          .occupation = options_.occupation};
      int64_t number = 0;
      if (parse_whole(std::string_view(options_.occupation), number)) {
        profile.occupation = occupation_name(number);
        if (profile.occupation.empty()) {
          return usage_failure("--occupation " + options_.occupation + ": expected a word, or a number from 0 to 20");
        }
      }
      if (const std::string remark = remark_on_unknown_words(profile, ratings_.users, known); !remark.empty()) {
        log(remark);
      }
      people_ = {{.name = user_text(profile), .id = -1}};
    } else {
      for (const int64_t id : known) people_.push_back({.name = std::to_string(id), .id = id});
    }
    return std::nullopt;
  }

  [[nodiscard]] std::optional<Failure> write(const ByteSink& out) const {
    const bool is_for_film = options_.describes_film() && options_.user.empty() && !options_.describes_user();
    RecommendedRows rows(options_.format, /*has_titles=*/true, out);
    std::vector<Recommended> audience;
    for (size_t begin = 0; begin < people_.size(); begin += static_cast<size_t>(kUsersAtOnce)) {
      const size_t count = std::min(static_cast<size_t>(kUsersAtOnce), people_.size() - begin);
      const at::Tensor scores_UI = workload_.model().scores(user_terms_of(begin, count), film_terms_IH_).to(at::kCPU);
      for (size_t i = 0; i < count; ++i) {
        const Person& person = people_[begin + i];
        const auto films = static_cast<size_t>(scores_UI.size(1));
        const std::span<const float> scores(scores_UI.const_data_ptr<float>() + i * films, films);
        if (is_for_film) {
          audience.push_back({.id = person.name, .title = {}, .score = scores.back()});
        } else {
          rows.add_items(person.name, best_films(person, scores));
        }
      }
      if (auto failure = rows.write()) return failure;
    }
    if (!is_for_film) return std::nullopt;
    std::stable_sort(audience.begin(), audience.end(),
                     [](const Recommended& a, const Recommended& b) { return a.score > b.score; });
    audience.resize(std::min(audience.size(), static_cast<size_t>(options_.topk)));
    rows.add_users(kNew, options_.title, audience);
    return rows.write();
  }

  [[nodiscard]] std::string summary() const {
    const auto candidates = std::count(is_candidate_.begin(), is_candidate_.end(), true);
    return plural(people_.size(), "user") + ", " + std::to_string(candidates) + " films of " + ratings_.path +
           (options_.describes_film() ? ", the new one among them" : "");
  }

 private:
  template <typename List>
  [[nodiscard]] at::Tensor ids_of(const List& list) const {
    const at::Tensor ids = at::empty({static_cast<int64_t>(list.size())}, at::kLong);
    std::copy(list.begin(), list.end(), ids.mutable_data_ptr<int64_t>());
    return ids.to(device_);
  }

  // [1, W]
  [[nodiscard]] at::Tensor vector_of(const std::string& text) const {
    const std::vector<int64_t> tokens = workload_.encoder().tokenize(text);
    return workload_.encoder().encode(ids_of(tokens).unsqueeze(0), ids_of(std::array<int64_t, 1>{std::ssize(tokens)}));
  }

  // [count, H]
  [[nodiscard]] at::Tensor user_terms_of(size_t begin, size_t count) const {
    const RecommenderModel& model = workload_.model();
    if (people_[begin].id < 0) {
      return model.user_term(
          model.users_unseen(ids_of(workload_.data().trained().users()), vector_of(people_[begin].name)));
    }
    std::vector<int64_t> ids;
    for (size_t i = begin; i < begin + count; ++i) ids.push_back(people_[i].id);
    const at::Tensor ids_B = ids_of(ids);
    return model.user_term(
        model.users(ids_B, {.vectors_TW = texts_TW_, .rows_B = workload_.user_texts().index_select(0, ids_B)}));
  }

  [[nodiscard]] std::vector<Recommended> best_films(const Person& person, std::span<const float> scores) const {
    std::vector<bool> is_candidate = is_candidate_;
    if (options_.exclude_seen && person.id >= 0) {
      for (const int32_t film : seen_.items_of(person.id)) is_candidate[static_cast<size_t>(film)] = false;
    }
    std::vector<Recommended> best;
    for (const int32_t film : best_scores(scores, options_.topk, [&](size_t index) { return is_candidate[index]; })) {
      const auto at = static_cast<size_t>(film);
      best.push_back({.id = ids_[at], .title = titles_[at], .score = scores[at]});
    }
    return best;
  }

  const RecommendFilmsOptions& options_;
  const RatingData& ratings_;
  const Gpt2recWorkload& workload_;
  at::Device device_;
  ItemsOfUsers seen_;  // empty without --exclude_seen
  at::Tensor texts_TW_;
  at::Tensor film_terms_IH_;
  std::vector<bool> is_candidate_;  // by film, the new one last
  std::vector<std::string> ids_;
  std::vector<std::string> titles_;
  std::vector<Person> people_;
};

// The weights contain the adapters only if a phase has trained them. Otherwise the adapters keep their initial values,
// with which they change nothing.
Status copy_weights(const TaskInput& input, Gpt2recWorkload& workload) {
  const bool has_adapters = std::any_of(input.weights.begin(), input.weights.end(), [](const NamedTensor& tensor) {
    return tensor.name.find(kAdapterMark) != std::string::npos;
  });
  NamedTensors wanted = workload.model().parameters();
  const NamedTensors& adapters = workload.encoder().adapters();
  if (has_adapters) wanted.insert(wanted.end(), adapters.begin(), adapters.end());
  return copy_tensors(input.weights, wanted, input.weights_path);
}

}  // namespace

std::optional<Failure> recommend_films(const TaskInput& input) {
  const torch::NoGradGuard no_grad;
  const Gpt2recOptions& options = options_of<Gpt2recOptions>(input.config);
  const Result<RatingData> ratings = load_rating_data(input.fs, options.data_path);
  if (!ratings.ok()) return data_failure(ratings.error().message);
  Result<std::unique_ptr<TextEncoder>> encoder =
      TextEncoder::make(input.fs, text_encoder_options(options), input.device);
  if (!encoder.ok()) return data_failure(encoder.error().message);
  Result<std::unique_ptr<Gpt2recWorkload>> workload =
      Gpt2recWorkload::create(input.config, *ratings, std::move(encoder).value(), input.device);
  if (!workload.ok()) return data_failure(workload.error().message);
  const Status has_same_inputs = check_frozen(input.progress, **workload, input.weights_path);
  if (!has_same_inputs.ok()) return usage_failure(has_same_inputs.error().message);
  (*workload)->initialize(input.config.training.seed);
  const Status copied = copy_weights(input, **workload);
  if (!copied.ok()) return usage_failure(copied.error().message);
  FilmRecommender recommender(input, *ratings, **workload);
  if (auto failure = recommender.choose_people(input.log)) return failure;
  if (auto failure = recommender.write(input.out)) return failure;
  input.log(recommender.summary());
  return std::nullopt;
}

}  // namespace lockstep
