#include "runner/models/sasrec/recommend_flags.h"

#include <algorithm>
#include <utility>

#include "runner/config/flag_table_builder.h"

namespace lockstep {
namespace {

// A field of the guide's file name, and the flag whose value it holds.
constexpr std::pair<const char*, const char*> kNameFields[] = {
    {".layer=", "num_blocks"}, {".head=", "num_heads"}, {".hidden=", "hidden_units"}, {".maxlen=", "maxlen"}};
constexpr std::pair<const char*, const char*> kNameStarts[] = {{"SASRec.", "sasrec"}, {"TiSASRec.", "tisasrec"}};
// Flags without which the weights cannot be used or give wrong scores.
constexpr const char* kNeeded[] = {"dataset", "variant", "maxlen", "hidden_units", "num_blocks", "num_heads"};

void add_recommend_flags(FlagTableBuilder& table) {
  table.group("Recommendations");
  table.text("user", kThisProcess, "an id of the data set", &RecommendOptions::user, "only for this user");
  table.text("users", kThisProcess, "a file", &RecommendOptions::users,
             "for the users of this file, one id on each line, in its order; without --users and --user: all");
  table.integer("topk", kThisProcess, 1, kCountMax, &RecommendOptions::topk, "items for each user, the best first");
  table.boolean("exclude_seen", kThisProcess, &RecommendOptions::exclude_seen,
                "leave out what the user has chosen before");
  table.choice("format", kThisProcess, {"jsonl", "tsv"}, &RecommendOptions::format,
               "jsonl: a line of JSON for each user; tsv: a line `user item score` for each item, below a header");
}

Status check_recommend(const RunConfig& config) {
  const RecommendOptions& options = options_of<RecommendOptions>(config);
  if (!options.user.empty() && !options.users.empty()) {
    return Error{ErrorCode::kInvalid, "--user and --users contradict each other: give one of them, or none for all"};
  }
  return {};
}

std::string file_name(const std::string& path) { return path.substr(path.rfind('/') + 1); }

// The digits that follow `field` in `name`; empty if the field is missing.
std::string digits_after(const std::string& name, const std::string& field) {
  const size_t at = name.find(field);
  if (at == std::string::npos) return {};
  const size_t begin = at + field.size();
  return name.substr(begin, std::min(name.find_first_not_of("0123456789", begin), name.size()) - begin);
}

}  // namespace

WorkloadTask recommend_task() {
  return {.name = "recommend",
          .summary = "the items that each user would choose next, with scores",
          .examples = {"lockstep sasrec recommend --checkpoint ml-100k_default --topk 10 --exclude_seen"},
          .set_defaults = [](RunConfig& config) { config.task.options = RecommendOptions{}; },
          .add_flags = add_recommend_flags,
          .workload_flags = {"dataset", "data_dir", "min_count", "max_bad_lines", "variant", "norm_first", "original",
                             "maxlen", "hidden_units", "num_blocks", "num_heads", "time_span", "time_unit", "no_time",
                             "no_mhc", "mhc_expansion_rate", "mhc_sinkhorn_iter"},
          .check = check_recommend};
}

Result<std::map<std::string, std::string>> flags_of_sasrec_weights(FileSystem& /*fs*/, const RunConfig& given) {
  const std::string name = file_name(given.task.checkpoint);
  std::map<std::string, std::string> flags;
  for (const auto& [field, flag] : kNameFields) {
    if (std::string digits = digits_after(name, field); !digits.empty()) flags[flag] = std::move(digits);
  }
  for (const auto& [start, variant] : kNameStarts) {
    if (name.starts_with(start)) flags["variant"] = variant;
  }
  std::string missing;
  for (const char* const flag : kNeeded) {
    if (is_given(given, flag) || flags.contains(flag)) continue;
    missing += (missing.empty() ? "--" : ", --") + std::string(flag);
  }
  if (missing.empty()) return flags;
  return Error{
      ErrorCode::kInvalid,
      given.task.checkpoint +
          " contains only weights. Also give these training flags, which its name does not contain: " + missing +
          " (a name that says most: SASRec.epoch=20.lr=0.001.layer=2.head=1.hidden=50.maxlen=200.pth)"};
}

}  // namespace lockstep
