// Flags of `lockstep gpt2rec recommend`. Links no torch. Threads: plain values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "runner/config/run_config.h"
#include "runner/config/workload_flags.h"
#include "runner/models/row_format_flags.h"

namespace lockstep {

struct RecommendFilmsOptions {
  std::string user;  // an id of the data set; empty and no new user described: all users that were trained on
  // A new user, described in words.
  std::string gender;  // "F" or "M"; empty: unknown
  std::optional<int64_t> age;
  std::string occupation;
  // A new film.
  std::string title;
  std::string genres;  // "Animation, Comedy"
  int64_t topk = 10;
  bool exclude_seen = false;
  RowFormat format = RowFormat::kJsonLines;

  [[nodiscard]] bool describes_user() const { return !gender.empty() || age || !occupation.empty(); }
  [[nodiscard]] bool describes_film() const { return !title.empty() || !genres.empty(); }
};

WorkloadTask recommend_films_task();

}  // namespace lockstep
