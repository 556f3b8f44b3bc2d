#include "runner/models/gpt2rec/data/movielens.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <optional>
#include <unordered_set>
#include <utility>

#include "runner/base/file_system.h"
#include "runner/base/one_line.h"
#include "runner/base/plural.h"
#include "runner/base/trimmed.h"
#include "runner/config/flag_table_builder.h"
#include "runner/data/csv_line.h"
#include "runner/data/event_layout.h"
#include "runner/formats/text_folder.h"
#include "runner/models/gpt2rec/data/generated_movies.h"

namespace lockstep {
namespace {

constexpr uint64_t kFileMax = uint64_t{4} << 30;
constexpr int64_t kIdMax = 10'000'000;  // each id has a row in a table of embeddings
constexpr size_t kLineMax = 65'536;
constexpr int64_t kLinesBetweenReports = 200'000;

// By MovieLens-1M's number; the other formats have words instead.
constexpr std::array<std::string_view, 21> kOccupations = {"other or not specified",
                                                           "academic/educator",
                                                           "artist",
                                                           "clerical/admin",
                                                           "college/grad student",
                                                           "customer service",
                                                           "doctor/health care",
                                                           "executive/managerial",
                                                           "farmer",
                                                           "homemaker",
                                                           "K-12 student",
                                                           "lawyer",
                                                           "programmer",
                                                           "retired",
                                                           "sales/marketing",
                                                           "scientist",
                                                           "self-employed",
                                                           "technician/engineer",
                                                           "tradesman/craftsman",
                                                           "unemployed",
                                                           "writer"};
constexpr std::array<std::string_view, 19> kGenresOf100k = {
    "Unknown",     "Action", "Adventure", "Animation", "Children's", "Comedy",  "Crime",
    "Documentary", "Drama",  "Fantasy",   "Film-Noir", "Horror",     "Musical", "Mystery",
    "Romance",     "Sci-Fi", "Thriller",  "War",       "Western"};

std::vector<std::string_view> split_fields(std::string_view line, std::string_view separator) {
  std::vector<std::string_view> fields;
  while (true) {
    const size_t at = line.find(separator);
    fields.push_back(line.substr(0, at));
    if (at == std::string_view::npos) return fields;
    line.remove_prefix(at + separator.size());
  }
}

std::string text_of(std::string_view field) { return std::string(trimmed(field)); }

std::string genre_list(const std::vector<std::string_view>& words) {
  std::string text;
  for (const std::string_view word : words) {
    const std::string_view one = trimmed(word);
    if (!one.empty()) text += (text.empty() ? "" : ", ") + std::string(one);
  }
  return text;
}

using Notes = std::vector<std::pair<std::string, std::string>>;

// The files of a data set: their names in the folder, and the columns of users and films. Files without a list of
// columns begin with a header.
struct Form {
  std::string name;
  std::string ratings;
  std::string users;  // empty: nothing describes users
  std::string films;
  std::string separator;  // in the files of users and films; ",": CSV
  std::vector<std::string> user_columns = {};
  std::vector<std::string> film_columns = {};
};

// Our name of a column of a header: RecBole's, without its type.
std::string column_name(std::string_view written) {
  constexpr std::pair<std::string_view, std::string_view> kOthers[] = {
      {"movieId", "item_id"}, {"title", "movie_title"}, {"genre", "genres"}, {"class", "genres"}};
  const std::string name = text_of(written.substr(0, written.find(':')));
  for (const auto& [other, own] : kOthers) {
    if (name == other) return std::string(own);
  }
  return name;
}

// A line of a file of users or films.
struct Row {
  const std::vector<std::string>& columns;
  std::vector<std::string_view> fields;

  // Empty if there is no such column.
  std::string_view operator[](std::string_view column) const {
    const auto found = std::find(columns.begin(), columns.end(), column);
    return found == columns.end() ? std::string_view() : fields[static_cast<size_t>(found - columns.begin())];
  }
};

// Where the files of a data set are.
struct DataFiles {
  const TextFolder& folder;
  const std::function<void()>& on_progress;
  Notes& notes;

  // A whole file as UTF-8. Adds a note if it is not plain UTF-8.
  [[nodiscard]] Result<std::string> text(const std::string& name) const {
    TRY_ASSIGN(OpenedText opened, folder.read(name, kFileMax, on_progress));
    const std::string note = encoding_note(opened);
    if (!note.empty()) notes.emplace_back("encoding", name + ": " + note);
    return std::move(opened.text);
  }
};

Error bad_line(const std::string& path, int64_t number, std::string_view line, const std::string& wrong,
               const std::string& expected) {
  constexpr size_t kShown = 80;
  return Error{ErrorCode::kInvalid, at_line(path, number) + ": " + wrong + "; found \"" +
                                        one_line(std::string(line.substr(0, kShown))) + "\", expected " + expected};
}

std::vector<std::string_view> fields_of(std::string_view line, const std::string& separator) {
  if (separator != ",") return split_fields(line, separator);
  std::vector<std::string_view> fields;
  for (bool more = true; more;) fields.push_back(next_csv_field(line, more));
  return fields;
}

// Calls `take` for each line of a file of users or films; it returns what is wrong with the line, or an empty text.
// `columns`: empty: the first line names them, those that are `needed` among them.
Status read_rows(const DataFiles& files, const std::string& name, const std::string& separator,
                 std::vector<std::string> columns, const std::vector<std::string>& needed,
                 const std::function<std::string(const Row& row)>& take) {
  const std::string path = files.folder.path_of(name);
  TRY_ASSIGN(const std::string text, files.text(name));
  EventLines lines(text);
  std::string_view line;
  const bool has_header = columns.empty();
  if (has_header && lines.next(line)) {
    for (const std::string_view field : fields_of(line, separator)) columns.push_back(column_name(field));
    for (const std::string& column : needed) {
      if (std::find(columns.begin(), columns.end(), column) != columns.end()) continue;
      return bad_line(path, lines.number(), line, "found no column " + column,
                      "a header with " + joined(needed) + ", or with the names that MovieLens has for them");
    }
  }
  const std::string expected = has_header
                                   ? "a field for each of the " + plural(columns.size(), "column") + " of the header"
                                   : joined(columns, separator);
  bool is_empty = true;
  while (lines.next(line)) {
    is_empty = false;
    Row row{.columns = columns, .fields = fields_of(line, separator)};
    std::vector<std::string_view>& fields = row.fields;
    if (separator == "::" && columns.size() == 3 && fields.size() > 3) {  // a film's title may hold "::" as well
      const char* const title = fields[1].data();
      fields = {
          fields[0], {title, static_cast<size_t>(fields.back().data() - title) - separator.size()}, fields.back()};
    }
    const std::string wrong = line.size() > kLineMax            ? "it has " + std::to_string(line.size()) + " bytes"
                              : fields.size() != columns.size() ? "it has " + plural(fields.size(), "field")
                                                                : take(row);
    if (!wrong.empty()) return bad_line(path, lines.number(), line, wrong, expected);
  }
  if (!is_empty) return {};
  return Error{ErrorCode::kInvalid, path + ": found no line, expected at least one"};
}

std::optional<int64_t> id_of(std::string_view field) {
  int64_t id = 0;
  if (!parse_whole(trimmed(field), id) || id < 0 || id > kIdMax) return std::nullopt;
  return id;
}

const std::string kIdWanted = "a whole number from 0 to " + std::to_string(kIdMax);

// The users or the films that have been read so far.
template <typename Entry>
struct Described {
  std::vector<Entry> entries;  // by id
  std::vector<bool> is_there;

  // Returns what is wrong, or an empty text.
  std::string add(std::string_view id_field, Entry entry) {
    const std::optional<int64_t> id = id_of(id_field);
    if (!id) return "the id \"" + std::string(id_field.substr(0, 40)) + "\" is not " + kIdWanted;
    const auto at = static_cast<size_t>(*id);
    if (at >= entries.size()) {
      entries.resize(at + 1);
      is_there.resize(at + 1, false);
    }
    if (is_there[at]) return "the id " + std::to_string(*id) + " occurs twice";
    entries[at] = std::move(entry);
    is_there[at] = true;
    return {};
  }
  [[nodiscard]] bool has(int64_t id) const {
    return static_cast<size_t>(id) < is_there.size() && is_there[static_cast<size_t>(id)];
  }
};

struct Tables {
  Described<UserProfile> users;
  Described<Film> films;
  std::vector<Rating> ratings;
};

// Returns what is wrong, or an empty text.
std::string read_profile(const Row& row, UserProfile& profile) {
  const std::string_view gender = trimmed(row["gender"]);
  if (gender == "M") profile.gender = "Male";
  if (gender == "F") profile.gender = "Female";
  if (!gender.empty() && profile.gender.empty()) return "the gender is neither F nor M";
  int64_t number = 0;
  if (const std::string_view age = trimmed(row["age"]); !age.empty()) {
    if (!parse_whole(age, number) || number < 0 || number > 150) return "the age is not a whole number from 0 to 150";
    profile.age_group = age_group_of(number);
  }
  profile.occupation = text_of(row["occupation"]);
  if (parse_whole(std::string_view(profile.occupation), number)) {
    profile.occupation = occupation_name(number);
    if (profile.occupation.empty()) return "the occupation's number is not from 0 to 20";
  }
  return {};
}

Film film_of(const Row& row, const std::string& separator) {
  Film film{.title = text_of(separator == "," ? csv_text(row["movie_title"]) : row["movie_title"])};
  // RecBole has the year apart. Of MovieLens-100K's films two have another text there: "V" (for video, behind the year)
  // and "unkonwn".
  const std::string year = text_of(row["release_year"]);
  if (!year.empty() && !film.title.empty()) film.title += " (" + year + ")";
  const std::string_view genres = row["genres"];
  if (separator == "\t") {
    film.genres = genre_list(split_fields(genres, " "));
  } else if (genres != "(no genres listed)") {
    film.genres = genres_of(genres);
  }
  if (separator == "|") {  // a column for each genre
    std::vector<std::string_view> marked;
    for (const std::string_view genre : kGenresOf100k) {
      if (trimmed(row[genre]) == "1") marked.push_back(genre);
    }
    film.genres = genre_list(marked);
  }
  return film;
}

Status read_ratings(const DataFiles& files, const Form& form, Tables& tables) {
  const std::string path = files.folder.path_of(form.ratings);
  TRY_ASSIGN(const std::string text, files.text(form.ratings));
  TRY_ASSIGN(const EventLayout layout, detect_layout(text, path));
  if (!layout.item) return Error{ErrorCode::kInvalid, path + " has lists of items, expected one in each line"};
  const std::string columns = std::to_string(layout.columns) + " columns";
  EventLines lines(text);
  std::string_view line;
  if (layout.has_header) lines.next(line);
  while (lines.next(line)) {
    if (lines.number() % kLinesBetweenReports == 0) files.on_progress();
    EventFields fields;
    const size_t count = layout.split(line, fields);
    if (count != layout.columns)
      return bad_line(path, lines.number(), line, "it has " + plural(count, "column"), columns);
    const std::string_view user_field = fields[layout.user];
    const std::optional<int64_t> user = id_of(user_field);
    const std::optional<int64_t> film = id_of(fields[*layout.item]);
    std::string wrong;
    if (!user || !film) {
      wrong = std::string(user ? "the film's" : "the user's") + " id is not " + kIdWanted;
    } else if (!form.users.empty() && !tables.users.has(*user)) {
      wrong = "user " + std::to_string(*user) + " is not in " + files.folder.path_of(form.users);
    } else if (!tables.films.has(*film)) {
      wrong = "film " + std::to_string(*film) + " is not in " + files.folder.path_of(form.films);
    }
    if (!wrong.empty()) return bad_line(path, lines.number(), line, wrong, columns);
    if (!tables.users.has(*user)) tables.users.add(user_field, UserProfile{});
    tables.ratings.push_back({static_cast<int32_t>(*user), static_cast<int32_t>(*film)});
  }
  return {};
}

Result<Tables> read_tables(const DataFiles& files, const Form& form) {
  Tables tables;
  if (!form.users.empty()) {
    TRY(read_rows(files, form.users, form.separator, form.user_columns, {"user_id", "age", "gender", "occupation"},
                  [&](const Row& row) {
                    UserProfile profile;
                    std::string wrong = read_profile(row, profile);
                    return wrong.empty() ? tables.users.add(row["user_id"], std::move(profile)) : wrong;
                  }));
  }
  TRY(read_rows(files, form.films, form.separator, form.film_columns, {"item_id", "movie_title", "genres"},
                [&](const Row& row) { return tables.films.add(row["item_id"], film_of(row, form.separator)); }));
  TRY(read_ratings(files, form, tables));
  return tables;
}

bool is_file(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::is_regular_file(path, ignored);
}

bool is_folder(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::is_directory(path, ignored);
}

constexpr const char* kExpected =
    "expected ratings.dat (MovieLens-1M), u.data (MovieLens-100K), ratings.csv (MovieLens-20M and later) or NAME.inter "
    "(RecBole), with the files of users and films beside it";

// `chosen`: the file of the folder that was given as the path; empty: the folder was.
Result<Form> find_form(const TextFolder& folder, const std::string& chosen, const std::string& path) {
  // "NAME.user" and "NAME.item" are RecBole's beside a NAME.inter, and MovieLens-100K's beside u.data.
  std::vector<std::string> stems;
  for (const std::string& name : folder.names()) {
    if (name.ends_with(".inter")) stems.push_back(name.substr(0, name.rfind('.')));
  }
  const auto own_stem = std::find(stems.begin(), stems.end(), chosen.substr(0, chosen.rfind('.')));
  const bool is_inter = !chosen.empty() && own_stem != stems.end();
  if (is_inter) stems = {*own_stem};
  if (!is_inter && folder.has("ratings.dat")) {
    const bool is_10m = folder.has("movies.dat") && !folder.has("users.dat");
    return Form{.name = is_10m ? "MovieLens-10M" : "MovieLens-1M",
                .ratings = "ratings.dat",
                .users = is_10m ? "" : "users.dat",
                .films = "movies.dat",
                .separator = "::",
                .user_columns = {"user_id", "gender", "age", "occupation", "zip_code"},
                .film_columns = {"item_id", "movie_title", "genres"}};
  }
  if (!is_inter && folder.has("u.data")) {
    Form form{.name = "MovieLens-100K",
              .ratings = "u.data",
              .users = "u.user",
              .films = "u.item",
              .separator = "|",
              .user_columns = {"user_id", "age", "gender", "occupation", "zip_code"},
              .film_columns = {"item_id", "movie_title", "release_date", "video_release_date", "URL"}};
    form.film_columns.insert(form.film_columns.end(), kGenresOf100k.begin(), kGenresOf100k.end());
    return form;
  }
  if (!is_inter && folder.has("ratings.csv")) {
    return Form{
        .name = "MovieLens, CSV", .ratings = "ratings.csv", .users = "", .films = "movies.csv", .separator = ","};
  }
  if (stems.size() > 1) {
    return Error{ErrorCode::kInvalid, "--data_path " + path + ": found " +
                                          joined(stems, ", ", [](const std::string& stem) { return stem + ".inter"; }) +
                                          "; give the path of the one that is meant"};
  }
  if (stems.empty()) return Error{ErrorCode::kNotFound, "--data_path " + path + ": found no ratings; " + kExpected};
  const std::string stem = stems.front();
  return Form{.name = "RecBole's " + stem,
              .ratings = stem + ".inter",
              .users = stem + ".user",
              .films = stem + ".item",
              .separator = "\t"};
}

// Keeps the first of a user's ratings of the same film, and notes how many others there were.
void join_equal_ratings(std::vector<Rating>& ratings, size_t names_max, Notes& notes) {
  const auto key_of = [](const Rating& rating) {
    return static_cast<uint64_t>(static_cast<uint32_t>(rating.user)) << 32 | static_cast<uint32_t>(rating.item);
  };
  std::vector<uint64_t> keys;
  keys.reserve(ratings.size());
  for (const Rating& rating : ratings) keys.push_back(key_of(rating));
  std::sort(keys.begin(), keys.end());
  if (std::adjacent_find(keys.begin(), keys.end()) == keys.end()) return;
  keys = {};
  std::unordered_set<uint64_t> seen;
  std::vector<std::string> names;
  const auto joined_ones = std::erase_if(ratings, [&](const Rating& rating) {
    if (seen.insert(key_of(rating)).second) return false;
    if (names.size() < names_max) {
      names.push_back("user " + std::to_string(rating.user) + " film " + std::to_string(rating.item));
    }
    return true;
  });
  const size_t more = joined_ones - names.size();
  notes.emplace_back("equal ratings", plural(joined_ones, "rating") +
                                          " of a film that the user has rated before left out (" + joined(names) +
                                          (more > 0 ? " and " + std::to_string(more) + " more)" : ")"));
}

std::string or_unknown(const std::string& text) { return text.empty() ? "Unknown" : text; }

}  // namespace

std::string user_text(const UserProfile& user) {
  return "User profile: Gender is " + or_unknown(user.gender) + ", Age group is " + or_unknown(user.age_group) +
         ", Occupation is " + or_unknown(user.occupation) + ".";
}

std::string film_text(const Film& film) {
  return "Movie: " + or_unknown(film.title) + ". Genres: " + or_unknown(film.genres) + ".";
}

std::string genres_of(std::string_view text) {
  std::vector<std::string_view> genres;
  for (const std::string_view part : split_fields(text, "|")) {
    for (const std::string_view genre : split_fields(part, ",")) genres.push_back(genre);
  }
  return genre_list(genres);
}

std::string age_group_of(int64_t years) {
  constexpr std::array<std::pair<int64_t, const char*>, 6> kGroups = {
      {{18, "0-18"}, {25, "18-24"}, {35, "25-34"}, {45, "35-44"}, {50, "45-49"}, {56, "50-55"}}};
  for (const auto& [below, name] : kGroups) {
    if (years < below) return name;
  }
  return "56+";
}

std::string_view occupation_name(int64_t number) {
  const bool is_known = number >= 0 && number < static_cast<int64_t>(kOccupations.size());
  return is_known ? kOccupations[static_cast<size_t>(number)] : std::string_view();
}

Result<RatingData> load_rating_data(FileSystem& fs, const std::string& path, const std::function<void()>& on_progress,
                                    size_t names_max) {
  if (path == kGeneratedMovies) return generated_movies();
  std::string found_path = path;
  std::string chosen;
  if (!is_folder(path) && !is_file(path) && is_zip_file(fs, path + ".zip")) found_path += ".zip";
  if (is_file(found_path) && !is_zip_file(fs, found_path)) {
    chosen = base_name(path);
    found_path = parent_path(path);
  }
  if (!is_file(found_path) && !is_folder(found_path)) {
    return Error{ErrorCode::kNotFound, "--data_path " + path + ": there is no such file or folder; expected a folder " +
                                           "with ratings.dat, users.dat and movies.dat, a zip archive of one, or " +
                                           "generated"};
  }
  Result<TextFolder> folder = TextFolder::open(fs, found_path, on_progress);
  if (!folder.ok()) return folder.error().with_context("--data_path");
  TRY_ASSIGN(const Form form, find_form(*folder, chosen, path));
  for (const std::string& file : {form.ratings, form.users, form.films}) {
    if (file.empty() || folder->has(file)) continue;
    const std::string others = form.users.empty() ? form.films : form.users + " and " + form.films;
    return Error{ErrorCode::kNotFound, "--data_path " + path + ": " + folder->path_of(file) +
                                           " is missing; this model reads what users and films are: expected " +
                                           form.ratings + ", " + others + " beside each other"};
  }
  Notes notes;
  TRY_ASSIGN(Tables tables, read_tables({.folder = *folder, .on_progress = on_progress, .notes = notes}, form));
  if (form.users.empty()) {
    notes.emplace_back("users", "no file describes them: gender, age group and occupation are Unknown");
  }
  join_equal_ratings(tables.ratings, names_max, notes);
  return RatingData{.path = found_path,
                    .form = form.name,
                    .ratings = std::move(tables.ratings),
                    .users = std::move(tables.users.entries),
                    .films = std::move(tables.films.entries),
                    .is_kept_back = {},
                    .notes = std::move(notes)};
}

}  // namespace lockstep
