#include "runner/models/gpt2rec/data/generated_movies.h"

#include <algorithm>
#include <array>
#include <set>

#include "runner/base/philox.h"

namespace lockstep {
namespace {

constexpr int64_t kUsers = 1500;
constexpr int64_t kFilms = 400;
constexpr int64_t kKeptBackEvery = 7;
constexpr uint32_t kRatingsMin = 10;
constexpr uint32_t kRatingsMax = 20;
constexpr double kLikedFraction = 0.9;  // of a user's films, those that are of the liked genre

// Users with the occupation kWatchers[i] like the genre kLikedGenres[i].
constexpr std::array<const char*, 8> kWatchers = {"scientist", "farmer",  "lawyer",     "artist",
                                                  "homemaker", "retired", "programmer", "writer"};
constexpr std::array<const char*, 8> kLikedGenres = {"Sci-Fi",  "Western", "Crime",     "Musical",
                                                     "Romance", "War",     "Animation", "Documentary"};
constexpr std::array<const char*, 10> kFirstWords = {"Silent",  "Golden", "Last", "Hidden", "Broken",
                                                     "Distant", "Winter", "Blue", "Lost",   "Bright"};
// By genre, so that a title reveals its genre, too.
constexpr std::array<std::array<const char*, 4>, 8> kSecondWords = {
    {{"Galaxy", "Orbit", "Android", "Moonbase"},
     {"Saddle", "Prairie", "Sheriff", "Stampede"},
     {"Verdict", "Robbery", "Witness", "Gangster"},
     {"Melody", "Chorus", "Dancing Shoes", "Songbird"},
     {"Wedding", "Sweetheart", "Love Letter", "Kiss"},
     {"Battalion", "Trench", "Submarine", "Regiment"},
     {"Bunny", "Puppet", "Dragon Friend", "Toy Box"},
     {"Archive", "Expedition", "Portrait", "Wilderness"}}};
constexpr std::array<int64_t, 7> kYearsOfAge = {1, 18, 25, 35, 45, 50, 56};

// The `step` of the random streams: what the numbers are used for.
enum class MoviePurpose : uint32_t { kUser = 16, kFilm = 17 };

class MovieDraws {
 public:
  MovieDraws(MoviePurpose purpose, int64_t id)
      : stream_{42, static_cast<uint32_t>(RandomPurpose::kSynthetic), static_cast<uint32_t>(purpose),
                static_cast<uint32_t>(id)} {}

  uint32_t below(uint32_t n) { return stream_.below(next_++, n); }
  bool happens(double probability) { return static_cast<double>(stream_.word(next_++)) < probability * 4294967296.0; }
  template <typename List>
  auto one_of(const List& list) {
    return list[below(static_cast<uint32_t>(list.size()))];
  }

 private:
  PhiloxStream stream_;
  uint64_t next_ = 0;
};

// The genres take turns.
size_t genre_of(int64_t film) { return static_cast<size_t>(film) % kLikedGenres.size(); }

}  // namespace

RatingData generated_movies() {
  RatingData data{.path = std::string(kGeneratedMovies),
                  .form = "made in memory",
                  .ratings = {},
                  .users = std::vector<UserProfile>(1),  // id 0 does not exist, as in MovieLens
                  .films = std::vector<Film>(1),
                  .is_kept_back = std::vector<bool>(1, false)};
  for (int64_t film = 1; film <= kFilms; ++film) {
    MovieDraws draws(MoviePurpose::kFilm, film);
    const std::string first = draws.one_of(kFirstWords);
    const std::string second = draws.one_of(kSecondWords[genre_of(film)]);
    data.films.push_back({.title = first + " " + second + " (" + std::to_string(1950 + draws.below(50)) + ")",
                          .genres = kLikedGenres[genre_of(film)]});
    data.is_kept_back.push_back(film % kKeptBackEvery == 0);
  }
  for (int64_t user = 1; user <= kUsers; ++user) {
    MovieDraws draws(MoviePurpose::kUser, user);
    const uint32_t taste = draws.below(static_cast<uint32_t>(kWatchers.size()));
    data.users.push_back({.gender = draws.happens(0.5) ? "Male" : "Female",
                          .age_group = age_group_of(draws.one_of(kYearsOfAge)),
                          .occupation = kWatchers[taste]});
    const uint32_t count = kRatingsMin + draws.below(kRatingsMax - kRatingsMin + 1);
    std::set<int64_t> seen;
    while (seen.size() < count) {
      const bool is_liked = draws.happens(kLikedFraction);
      int64_t film = 0;
      do {
        // The lower of two draws, so that films with low numbers are more popular.
        const uint32_t first = draws.below(static_cast<uint32_t>(kFilms));
        film = 1 + std::min(first, draws.below(static_cast<uint32_t>(kFilms)));
      } while (is_liked != (genre_of(film) == taste));
      if (!seen.insert(film).second) continue;
      data.ratings.push_back({static_cast<int32_t>(user), static_cast<int32_t>(film)});
    }
  }
  return data;
}

}  // namespace lockstep
