// Ratings with the texts that describe users and films: MovieLens-1M, MovieLens-100K, or made in memory.
//
// Role: files → ratings in their order, and what is known of each id. A user or a film is its id in the files: ids run
// from 0 to the largest one, those that no line has count as unknown.
// Forms, by the files that a folder holds:
//   MovieLens-1M     ratings.dat, users.dat, movies.dat      fields between "::"
//   MovieLens-100K   u.data, u.user, u.item                  tabs; "|"
//   RecBole          NAME.inter, NAME.user, NAME.item        tabs, a header of name:type
// Texts that are not UTF-8 are taken for Latin-1, file by file. Threads: pure but for the reading of files.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "runner/base/result.h"

namespace lockstep {

struct Rating {
  int32_t user = 0;
  int32_t item = 0;
};

// Empty: unknown.
struct UserProfile {
  std::string gender;  // "Male" or "Female"
  std::string age_group;
  std::string occupation;
};
struct Film {
  std::string title;
  std::string genres;  // "Animation, Comedy"
};

struct RatingData {
  std::string path;  // as given, for messages
  std::string form;  // "MovieLens-1M"
  std::vector<Rating> ratings;
  std::vector<UserProfile> users;  // by id
  std::vector<Film> films;         // by id
  std::vector<bool> is_kept_back;  // by film: its ratings are for the test alone; empty: none
};

// "User profile: Gender is Male, Age group is 25-34, Occupation is writer."
std::string user_text(const UserProfile& user);
// "Movie: Toy Story (1995). Genres: Animation, Comedy."
std::string film_text(const Film& film);

// Of years of age; the codes of MovieLens-1M (1, 18, 25, …) are the first years of their groups.
std::string age_group_of(int64_t years);
// By MovieLens-1M's number; nothing for a number that has none.
std::string_view occupation_name(int64_t number);

inline constexpr std::string_view kGeneratedMovies = "generated";

// `path`: a folder, one of its files, or "generated". `on_progress` is called after every few megabytes.
// Errors: kNotFound (nothing there, or no ratings); kInvalid (a line that is none, an id that no line describes, a file
// without texts, no rating). Each names the file, the line, what was found and what was expected.
Result<RatingData> load_rating_data(
    const std::string& path, const std::function<void()>& on_progress = [] {});

}  // namespace lockstep
