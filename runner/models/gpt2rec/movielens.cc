#include "runner/models/gpt2rec/movielens.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <optional>
#include <unordered_set>
#include <utility>

#include "runner/base/file_system.h"
#include "runner/base/one_line.h"
#include "runner/base/plural.h"
#include "runner/config/flag_table_builder.h"
#include "runner/data/csv_line.h"
#include "runner/data/take_line.h"
#include "runner/formats/text_folder.h"
#include "runner/models/gpt2rec/generated_movies.h"

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

std::string count_of_fields(size_t count) { return "it has " + plural(count, "field"); }

std::string_view trimmed(std::string_view text) {
  const auto is_blank = [](char c) { return c == ' ' || c == '\t' || c == '\r'; };
  while (!text.empty() && is_blank(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_blank(text.back())) text.remove_suffix(1);
  return text;
}

std::string text_of(std::string_view field) { return std::string(trimmed(field)); }

using Notes = std::vector<std::pair<std::string, std::string>>;

// Where the files of a data set are.
struct Place {
  const TextFolder& folder;
  const std::function<void()>& on_progress;
};

// One file of lines, whole in memory, as UTF-8.
class LineFile {
 public:
  // Adds a note if the file is not plain UTF-8.
  static Result<LineFile> read(const Place& place, const std::string& name, Notes& notes) {
    LineFile file;
    file.path_ = place.folder.path_of(name);
    TRY_ASSIGN(OpenedText opened, place.folder.read(name, kFileMax, place.on_progress));
    if (const std::string note = encoding_note(opened); !note.empty())
      notes.emplace_back("encoding", name + ": " + note);
    file.text_ = std::move(opened.text);
    file.on_progress_ = place.on_progress;
    return file;
  }

  // Calls `take` for each line that is not blank; it returns what is wrong with the line, or an empty text. `expected`:
  // the form of a line, for the error.
  Status each(const std::string& expected, const std::function<std::string(std::string_view line)>& take) const {
    std::string_view rest = text_;
    for (int64_t number = 1; !rest.empty(); ++number) {
      const std::string_view line = take_line(rest);
      if (number % kLinesBetweenReports == 0) on_progress_();
      if (trimmed(line).empty()) continue;
      const std::string wrong =
          line.size() > kLineMax ? "it has " + std::to_string(line.size()) + " bytes" : take(line);
      if (wrong.empty()) continue;
      constexpr size_t kShown = 80;
      return Error{ErrorCode::kInvalid, path_ + ":" + std::to_string(number) + ": " + wrong + "; found \"" +
                                            one_line(std::string(line.substr(0, kShown))) + "\", expected " + expected};
    }
    return {};
  }

  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] std::string_view first_line() const {
    std::string_view text = text_;
    return take_line(text);
  }

 private:
  std::string path_;
  std::string text_;
  std::function<void()> on_progress_;
};

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
  std::string users_path;  // empty: no file describes users
  std::string films_path;
  Notes notes;

  std::string add_rating(std::string_view user_field, std::string_view item_field) {
    const std::optional<int64_t> user = id_of(user_field);
    const std::optional<int64_t> item = id_of(item_field);
    if (!user || !item) return std::string(user ? "the film's" : "the user's") + " id is not " + kIdWanted;
    if (users_path.empty()) {
      if (!users.has(*user)) users.add(user_field, UserProfile{});
    } else if (!users.has(*user)) {
      return "user " + std::to_string(*user) + " is not in " + users_path;
    }
    if (!films.has(*item)) return "film " + std::to_string(*item) + " is not in " + films_path;
    ratings.push_back({static_cast<int32_t>(*user), static_cast<int32_t>(*item)});
    return {};
  }
};

// Returns what is wrong, or an empty text.
std::string read_profile(std::string_view gender, std::string_view age, std::string_view occupation,
                         UserProfile& profile) {
  gender = trimmed(gender);
  if (gender == "M") profile.gender = "Male";
  if (gender == "F") profile.gender = "Female";
  if (!gender.empty() && profile.gender.empty()) return "the gender is neither F nor M";
  int64_t number = 0;
  if (!trimmed(age).empty()) {
    if (!parse_whole(trimmed(age), number) || number < 0 || number > 150)
      return "the age is not a whole number from 0 to 150";
    profile.age_group = age_group_of(number);
  }
  profile.occupation = text_of(occupation);
  if (parse_whole(trimmed(occupation), number)) {
    profile.occupation = occupation_name(number);
    if (profile.occupation.empty()) return "the occupation's number is not from 0 to 20";
  }
  return {};
}

std::string genre_list(const std::vector<std::string_view>& words) {
  std::string text;
  for (const std::string_view word : words) {
    const std::string_view one = trimmed(word);
    if (!one.empty()) text += (text.empty() ? "" : ", ") + std::string(one);
  }
  return text;
}

Status read_1m(const Place& place, Tables& tables) {
  if (!tables.users_path.empty()) {
    TRY_ASSIGN(const LineFile users, LineFile::read(place, "users.dat", tables.notes));
    TRY(users.each("id::F or M::age::occupation::zip", [&](std::string_view line) -> std::string {
      const auto fields = split_fields(line, "::");
      if (fields.size() != 5) return count_of_fields(fields.size());
      UserProfile profile;
      std::string wrong = read_profile(fields[1], fields[2], fields[3], profile);
      return wrong.empty() ? tables.users.add(fields[0], std::move(profile)) : wrong;
    }));
  }
  TRY_ASSIGN(const LineFile films, LineFile::read(place, "movies.dat", tables.notes));
  TRY_ASSIGN(const LineFile ratings, LineFile::read(place, "ratings.dat", tables.notes));
  TRY(films.each("id::title::genre|genre", [&](std::string_view line) -> std::string {
    // A title may hold "::" as well.
    const size_t first = line.find("::");
    const size_t last = line.rfind("::");
    if (first == std::string_view::npos || first == last) return "it has fewer than 3 fields";
    return tables.films.add(line.substr(0, first), {.title = text_of(line.substr(first + 2, last - first - 2)),
                                                    .genres = genres_of(line.substr(last + 2))});
  }));
  return ratings.each("user::film::rating::time", [&](std::string_view line) -> std::string {
    const auto fields = split_fields(line, "::");
    if (fields.size() != 4) return count_of_fields(fields.size());
    return tables.add_rating(fields[0], fields[1]);
  });
}

// The columns of a CSV file, by its header.
class CsvColumns {
 public:
  static Result<CsvColumns> of(const LineFile& file, const std::vector<std::string>& needed) {
    CsvColumns columns;
    std::vector<std::string> names;
    for (const std::string_view field : fields_of(file.first_line())) names.push_back(text_of(field));
    columns.count_ = names.size();
    for (const std::string& name : needed) {
      const auto found = std::find(names.begin(), names.end(), name);
      if (found == names.end()) {
        return Error{ErrorCode::kInvalid, file.path() + ":1: found no column " + name + ", expected the header " +
                                              joined(needed, ",") + " as MovieLens writes it"};
      }
      columns.places_.push_back(static_cast<size_t>(found - names.begin()));
    }
    return columns;
  }

  // Calls `take` with the needed fields, in the order of `needed`, of each line but the header.
  Status each(const LineFile& file,
              const std::function<std::string(const std::vector<std::string_view>&)>& take) const {
    bool is_header = true;
    std::vector<std::string_view> chosen(places_.size());
    return file.each("a field for each of the " + std::to_string(count_) + " columns of the header",
                     [&](std::string_view line) -> std::string {
                       if (std::exchange(is_header, false)) return {};
                       const auto fields = fields_of(line);
                       if (fields.size() != count_) return count_of_fields(fields.size());
                       for (size_t i = 0; i < places_.size(); ++i) chosen[i] = fields[places_[i]];
                       return take(chosen);
                     });
  }

 private:
  static std::vector<std::string_view> fields_of(std::string_view line) {
    std::vector<std::string_view> fields;
    for (bool more = true; more;) fields.push_back(take_csv_field(line, more));
    return fields;
  }

  size_t count_ = 0;
  std::vector<size_t> places_;
};

Status read_csv(const Place& place, Tables& tables) {
  TRY_ASSIGN(const LineFile films, LineFile::read(place, "movies.csv", tables.notes));
  TRY_ASSIGN(const LineFile ratings, LineFile::read(place, "ratings.csv", tables.notes));
  TRY_ASSIGN(const CsvColumns of_film, CsvColumns::of(films, {"movieId", "title", "genres"}));
  TRY(of_film.each(films, [&](const std::vector<std::string_view>& fields) {
    const bool has_genres = fields[2] != "(no genres listed)";
    return tables.films.add(fields[0], {.title = text_of(csv_text(fields[1])),
                                        .genres = has_genres ? genres_of(fields[2]) : std::string()});
  }));
  TRY_ASSIGN(const CsvColumns of_rating, CsvColumns::of(ratings, {"userId", "movieId"}));
  return of_rating.each(
      ratings, [&](const std::vector<std::string_view>& fields) { return tables.add_rating(fields[0], fields[1]); });
}

Status read_100k(const Place& place, Tables& tables) {
  TRY_ASSIGN(const LineFile users, LineFile::read(place, "u.user", tables.notes));
  TRY_ASSIGN(const LineFile films, LineFile::read(place, "u.item", tables.notes));
  TRY_ASSIGN(const LineFile ratings, LineFile::read(place, "u.data", tables.notes));
  TRY(users.each("id|age|F or M|occupation|zip", [&](std::string_view line) -> std::string {
    const auto fields = split_fields(line, "|");
    if (fields.size() != 5) return count_of_fields(fields.size());
    UserProfile profile;
    std::string wrong = read_profile(fields[2], fields[1], fields[3], profile);
    return wrong.empty() ? tables.users.add(fields[0], std::move(profile)) : wrong;
  }));
  constexpr size_t kFirstGenre = 5;
  TRY(films.each("id|title|date|date|URL|19 times 0 or 1", [&](std::string_view line) -> std::string {
    const auto fields = split_fields(line, "|");
    if (fields.size() != kFirstGenre + kGenresOf100k.size()) {
      return count_of_fields(fields.size());
    }
    std::vector<std::string_view> genres;
    for (size_t i = 0; i < kGenresOf100k.size(); ++i) {
      if (trimmed(fields[kFirstGenre + i]) == "1") genres.push_back(kGenresOf100k[i]);
    }
    return tables.films.add(fields[0], {.title = text_of(fields[1]), .genres = genre_list(genres)});
  }));
  return ratings.each("user, film, rating and time with tabs between them", [&](std::string_view line) -> std::string {
    const auto fields = split_fields(line, "\t");
    if (fields.size() != 4) return count_of_fields(fields.size());
    return tables.add_rating(fields[0], fields[1]);
  });
}

// The columns of a RecBole file, by name.
class RecboleColumns {
 public:
  static Result<RecboleColumns> of(const LineFile& file, const std::vector<std::string>& needed) {
    RecboleColumns columns;
    for (const std::string_view column : split_fields(file.first_line(), "\t")) {
      columns.names_.push_back(text_of(column.substr(0, column.find(':'))));
    }
    for (const std::string& name : needed) {
      if (columns.at(name)) continue;
      return Error{ErrorCode::kInvalid, file.path() + ":1: found no column " + name +
                                            ":type, expected a header of name:type with tabs between them, as RecBole "
                                            "writes it"};
    }
    return columns;
  }

  // The column's field in a line; empty if the file lacks the column or the line is too short.
  [[nodiscard]] std::string_view of(const std::vector<std::string_view>& fields, const std::string& name) const {
    const std::optional<size_t> at = this->at(name);
    return at && *at < fields.size() ? fields[*at] : std::string_view();
  }

  // Calls `take` with the fields of each line but the header.
  Status each(const LineFile& file,
              const std::function<std::string(const std::vector<std::string_view>&)>& take) const {
    bool is_header = true;
    return file.each("a field for each of the " + std::to_string(names_.size()) + " columns of the header",
                     [&](std::string_view line) -> std::string {
                       if (std::exchange(is_header, false)) return {};
                       const auto fields = split_fields(line, "\t");
                       if (fields.size() != names_.size()) return count_of_fields(fields.size());
                       return take(fields);
                     });
  }

 private:
  [[nodiscard]] std::optional<size_t> at(const std::string& name) const {
    const auto found = std::find(names_.begin(), names_.end(), name);
    if (found == names_.end()) return std::nullopt;
    return static_cast<size_t>(found - names_.begin());
  }

  std::vector<std::string> names_;
};

// `stem`: the name of the three files without their endings.
Status read_recbole(const std::string& stem, const Place& place, Tables& tables) {
  TRY_ASSIGN(const LineFile users, LineFile::read(place, stem + ".user", tables.notes));
  TRY_ASSIGN(const LineFile films, LineFile::read(place, stem + ".item", tables.notes));
  TRY_ASSIGN(const LineFile ratings, LineFile::read(place, stem + ".inter", tables.notes));
  TRY_ASSIGN(const RecboleColumns of_user, RecboleColumns::of(users, {"user_id", "age", "gender", "occupation"}));
  TRY(of_user.each(users, [&](const std::vector<std::string_view>& fields) -> std::string {
    UserProfile profile;
    std::string wrong = read_profile(of_user.of(fields, "gender"), of_user.of(fields, "age"),
                                     of_user.of(fields, "occupation"), profile);
    return wrong.empty() ? tables.users.add(of_user.of(fields, "user_id"), std::move(profile)) : wrong;
  }));
  const char* const genres = RecboleColumns::of(films, {"genre"}).ok() ? "genre" : "class";
  TRY_ASSIGN(const RecboleColumns of_film, RecboleColumns::of(films, {"item_id", "movie_title", genres}));
  TRY(of_film.each(films, [&](const std::vector<std::string_view>& fields) -> std::string {
    Film film{.title = text_of(of_film.of(fields, "movie_title")),
              .genres = genre_list(split_fields(of_film.of(fields, genres), " "))};
    // Of MovieLens-100K's films two have another text there: "V" (for video, behind the year) and "unkonwn".
    const std::string year = text_of(of_film.of(fields, "release_year"));
    if (!year.empty() && !film.title.empty()) film.title += " (" + year + ")";
    return tables.films.add(of_film.of(fields, "item_id"), std::move(film));
  }));
  TRY_ASSIGN(const RecboleColumns of_rating, RecboleColumns::of(ratings, {"user_id", "item_id"}));
  return of_rating.each(ratings, [&](const std::vector<std::string_view>& fields) {
    return tables.add_rating(of_rating.of(fields, "user_id"), of_rating.of(fields, "item_id"));
  });
}

bool is_file(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::is_regular_file(path, ignored);
}

bool is_folder(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::is_directory(path, ignored);
}

// The files of a data set: of ratings, users (empty: there is none) and films, and the function that reads them.
struct FoundFiles {
  std::string form;
  std::array<std::string, 3> files;
  std::function<Status(const Place& place, Tables& tables)> read;
};

constexpr const char* kExpected =
    "expected ratings.dat (MovieLens-1M), u.data (MovieLens-100K), ratings.csv (MovieLens-20M and later) or NAME.inter "
    "(RecBole), with the files of users and films beside it";

// `chosen`: the file of the folder that was given as the path; empty: the folder was.
Result<FoundFiles> find_files(const TextFolder& folder, const std::string& chosen, const std::string& path) {
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
    return FoundFiles{.form = is_10m ? "MovieLens-10M" : "MovieLens-1M",
                      .files = {"ratings.dat", is_10m ? "" : "users.dat", "movies.dat"},
                      .read = read_1m};
  }
  if (!is_inter && folder.has("u.data")) {
    return FoundFiles{.form = "MovieLens-100K", .files = {"u.data", "u.user", "u.item"}, .read = read_100k};
  }
  if (!is_inter && folder.has("ratings.csv")) {
    return FoundFiles{.form = "MovieLens, CSV", .files = {"ratings.csv", "", "movies.csv"}, .read = read_csv};
  }
  if (stems.size() > 1) {
    return Error{ErrorCode::kInvalid, "--data_path " + path + ": found " +
                                          joined(stems, ", ", [](const std::string& stem) { return stem + ".inter"; }) +
                                          "; give the path of the one that is meant"};
  }
  if (stems.empty()) return Error{ErrorCode::kNotFound, "--data_path " + path + ": found no ratings; " + kExpected};
  const std::string stem = stems.front();
  return FoundFiles{.form = "RecBole's " + stem,
                    .files = {stem + ".inter", stem + ".user", stem + ".item"},
                    .read = [stem](const Place& place, Tables& tables) { return read_recbole(stem, place, tables); }};
}

// Keeps the first of a user's ratings of the same film, and notes how many others there were.
void join_equal_ratings(Tables& tables, size_t names_max) {
  const auto key_of = [](const Rating& rating) {
    return static_cast<uint64_t>(static_cast<uint32_t>(rating.user)) << 32 | static_cast<uint32_t>(rating.item);
  };
  std::vector<uint64_t> keys;
  keys.reserve(tables.ratings.size());
  for (const Rating& rating : tables.ratings) keys.push_back(key_of(rating));
  std::sort(keys.begin(), keys.end());
  if (std::adjacent_find(keys.begin(), keys.end()) == keys.end()) return;
  keys = {};
  std::unordered_set<uint64_t> seen;
  std::vector<std::string> names;
  const auto joined_ones = std::erase_if(tables.ratings, [&](const Rating& rating) {
    if (seen.insert(key_of(rating)).second) return false;
    if (names.size() < names_max) {
      names.push_back("user " + std::to_string(rating.user) + " film " + std::to_string(rating.item));
    }
    return true;
  });
  const size_t more = joined_ones - names.size();
  tables.notes.emplace_back("equal ratings",
                            plural(joined_ones, "rating") + " of a film that the user has rated before left out (" +
                                joined(names) + (more > 0 ? " and " + std::to_string(more) + " more)" : ")"));
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

Result<RatingData> load_rating_data(const std::string& path, const std::function<void()>& on_progress,
                                    size_t names_max) {
  if (path == kGeneratedMovies) return generated_movies();
  std::string place = path;
  std::string chosen;
  if (!is_folder(path) && !is_file(path) && is_zip_file(path + ".zip")) place += ".zip";
  if (is_file(place) && !is_zip_file(place)) {
    chosen = base_name(path);
    place = parent_path(path);
  }
  if (!is_file(place) && !is_folder(place)) {
    return Error{ErrorCode::kNotFound, "--data_path " + path + ": there is no such file or folder; expected a folder " +
                                           "with ratings.dat, users.dat and movies.dat, a zip archive of one, or " +
                                           "generated"};
  }
  Result<TextFolder> folder = TextFolder::open(place, on_progress);
  if (!folder.ok()) return folder.error().with_context("--data_path");
  TRY_ASSIGN(const FoundFiles found, find_files(*folder, chosen, path));
  Tables tables;
  if (!found.files[1].empty()) tables.users_path = folder->path_of(found.files[1]);
  tables.films_path = folder->path_of(found.files[2]);
  for (const std::string& file : found.files) {
    if (file.empty() || folder->has(file)) continue;
    const std::string others = found.files[1].empty() ? found.files[2] : found.files[1] + " and " + found.files[2];
    return Error{ErrorCode::kNotFound, "--data_path " + path + ": " + folder->path_of(file) +
                                           " is missing; this model reads what users and films are: expected " +
                                           found.files[0] + ", " + others + " beside each other"};
  }
  TRY(found.read({.folder = *folder, .on_progress = on_progress}, tables));
  for (const auto& [file, is_empty] :
       {std::pair(found.files[0], tables.ratings.empty()),
        std::pair(found.files[1], !found.files[1].empty() && tables.users.entries.empty()),
        std::pair(found.files[2], tables.films.entries.empty())}) {
    if (is_empty) {
      return Error{ErrorCode::kInvalid, folder->path_of(file) + ": found no line, expected at least one"};
    }
  }
  if (tables.users_path.empty()) {
    tables.notes.emplace_back("users", "no file describes them: gender, age group and occupation are Unknown");
  }
  join_equal_ratings(tables, names_max);
  return RatingData{.path = place,
                    .form = found.form,
                    .ratings = std::move(tables.ratings),
                    .users = std::move(tables.users.entries),
                    .films = std::move(tables.films.entries),
                    .is_kept_back = {},
                    .notes = std::move(tables.notes)};
}

}  // namespace lockstep
