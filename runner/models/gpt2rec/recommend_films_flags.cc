#include "runner/models/gpt2rec/recommend_films_flags.h"

#include "runner/config/flag_table_builder.h"

namespace lockstep {
namespace {

void add_film_flags(FlagTableBuilder& table) {
  table.group("For whom");
  table.text("user", kThisProcess, "an id of the data set", &RecommendFilmsOptions::user,
             "recommend for this user alone; without --user and a description of a new user: for all");
  Flag& gender =
      table.text("gender", kThisProcess, "F or M", &RecommendFilmsOptions::gender, "for a new user: the gender");
  gender.words = {"F", "M"};
  gender.set = [](std::string_view text, RunConfig& config) {
    if (text != "F" && text != "M") return false;
    options_of<RecommendFilmsOptions>(config).gender = std::string(text);
    return true;
  };
  table.optional_integer("age", kThisProcess, 0, 150, &RecommendFilmsOptions::age, "for a new user: years of age");
  table.text("occupation", kThisProcess, "a word, or MovieLens-1M's number", &RecommendFilmsOptions::occupation,
             "for a new user: the occupation");
  table.group("A new film");
  table.text("title", kThisProcess, "a title", &RecommendFilmsOptions::title,
             "a new film, with its year as in the titles of the data set; it is ranked with the other films, or, if no "
             "user is given, the users are ranked for it");
  table.text("genres", kThisProcess, "words with commas between them", &RecommendFilmsOptions::genres,
             "the genres of that film");
  table.group("Recommendations");
  table.integer("topk", kThisProcess, 1, kCountMax, &RecommendFilmsOptions::topk,
                "films for each user, the best first, or users for the film");
  table.boolean("exclude_seen", kThisProcess, &RecommendFilmsOptions::exclude_seen,
                "leave out what the user has rated");
  table.choice(
      "format", kThisProcess, {"jsonl", "tsv"}, &RecommendFilmsOptions::format,
      "jsonl: a line of JSON for each user; tsv: a line `user item score title` for each film, below a header");
}

Status check_film_options(const RunConfig& config) {
  const RecommendFilmsOptions& options = options_of<RecommendFilmsOptions>(config);
  if (!options.user.empty() && options.describes_user()) {
    return Error{
        ErrorCode::kInvalid,
        "--user selects a user of the data set, and --gender, --age and --occupation describe a new user: give one of "
        "the two"};
  }
  return {};
}

}  // namespace

WorkloadTask recommend_films_task() {
  return {.name = "recommend",
          .summary = "the films that suit each user, also for somebody or a film described in words",
          .examples = {"lockstep gpt2rec recommend --checkpoint ml-1m_default --gender F --age 34 --occupation artist"},
          .set_defaults = [](RunConfig& config) { config.task.options = RecommendFilmsOptions{}; },
          .add_flags = add_film_flags,
          // split_ratio and seed: which users and films were trained on.
          .workload_flags = {"data_path", "split_ratio", "seed", "gpt2_path", "tokenizer_path", "gpt2_config",
                             "max_length", "pool", "lora_rank", "lora_alpha", "embed_dim", "use_attention"},
          .check = check_film_options};
}

}  // namespace lockstep
