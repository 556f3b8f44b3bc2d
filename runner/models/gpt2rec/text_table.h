// TextTable: the distinct texts of a data set as tokens, and which of them are encoded together.
//
// Role: tokenises each distinct text once. A text that many users share is kept once, and encoded once in a batch.
// Groups: texts of about the same length are encoded together, so that there is little padding.
// Threads: const after construction.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runner/models/workload.h"

namespace lockstep {

class TextEncoder;

class TextTable {
 public:
  // `users`, `films`: the texts, by id.
  TextTable(const TextEncoder& encoder, const std::vector<std::string>& users, const std::vector<std::string>& films);

  [[nodiscard]] int64_t size() const { return static_cast<int64_t>(texts_.size()); }
  // The number of the text of a user or film.
  [[nodiscard]] int64_t of_user(int64_t user) const { return of_user_[static_cast<size_t>(user)]; }
  [[nodiscard]] int64_t of_film(int64_t film) const { return of_film_[static_cast<size_t>(film)]; }
  [[nodiscard]] int64_t length(int64_t text) const {
    return static_cast<int64_t>(texts_[static_cast<size_t>(text)].tokens.size());
  }
  [[nodiscard]] int64_t tokens() const;                           // of all texts
  [[nodiscard]] int64_t cut_texts() const { return cut_texts_; }  // that fill max_length

  // Divides the texts of these numbers (distinct, ascending) into groups, which are encoded one after the other.
  [[nodiscard]] std::vector<std::vector<int64_t>> groups(const std::vector<int64_t>& numbers) const;
  // A group's "tokens_NT", "lengths_N" and "texts_N" (the numbers), with `suffix` appended to these names.
  [[nodiscard]] NamedTensors tensors(const std::vector<int64_t>& group, const std::string& suffix, bool pinned) const;

 private:
  struct Text {
    std::vector<int64_t> tokens;
    int64_t padded_to = 0;  // with --pool padded, whose means include padding: the least padded length; else 0
  };
  std::vector<int64_t> add_all(const TextEncoder& encoder, const std::vector<std::string>& texts);

  std::vector<Text> texts_;
  std::vector<int64_t> of_user_;
  std::vector<int64_t> of_film_;
  int64_t cut_texts_ = 0;
  int64_t padding_token_ = 0;
};

}  // namespace lockstep
