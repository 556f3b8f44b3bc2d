// Ratings with the texts that describe users and films: a data set of MovieLens, or made in memory.
//
// Role: files → ratings in the order of the file, and a description of each user and film. Users and films keep the ids
// of the files, from 0 to the largest one; an id that no line describes has an empty description. Of several ratings of
// a film by the same user only the first is kept: with more, one could be trained on and another be tested.
// Formats, recognised by the files in a folder or in a zip archive; open_text.h says which encodings are read:
//   MovieLens-1M           ratings.dat, users.dat, movies.dat      fields between "::"; 10M has no users.dat
//   MovieLens-100K         u.data, u.user, u.item                  tabs; "|"
//   MovieLens-20M to 32M   ratings.csv, movies.csv                 a header; nothing describes users
//   RecBole                NAME.inter, NAME.user, NAME.item        tabs, a header of name:type
// The file of ratings may have any form of interactions.h that has one item in a line and numbers as ids.
// Threads: pure, except that files are read.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runner/base/file_system.h"
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
  std::vector<bool> is_kept_back;  // by film: are its ratings for the test alone? Empty: no film's are
  // Rows for the start table: what of the files is not read as it is there, and why.
  std::vector<std::pair<std::string, std::string>> notes = {};
};

// "User profile: Gender is Male, Age group is 25-34, Occupation is writer."
std::string user_text(const UserProfile& user);
// "Movie: Toy Story (1995). Genres: Animation, Comedy."
std::string film_text(const Film& film);

// "Animation|Comedy" and "Animation,Comedy" → "Animation, Comedy".
std::string genres_of(std::string_view text);

// The name of the age group; MovieLens-1M's codes (1, 18, 25, …) are the first years of the groups.
std::string age_group_of(int64_t years);
// The occupation with this number in MovieLens-1M; empty for an unknown number.
std::string_view occupation_name(int64_t number);

inline constexpr std::string_view kGeneratedMovies = "generated";

// `path`: a folder, one of its files, a zip archive of such a folder (also without the ".zip"), or "generated".
// `on_progress` is called after every few megabytes. names_max: names that a note lists.
// Errors: kNotFound (no such path, or a file is missing); kInvalid (a malformed line, a rating of a user or film that
// no line describes, a file without lines). Each names the file, the line, what was found and what was expected.
Result<RatingData> load_rating_data(
    FileSystem& fs, const std::string& path, const std::function<void()>& on_progress = [] {}, size_t names_max = 3);

}  // namespace lockstep
