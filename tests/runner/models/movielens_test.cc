#include "runner/models/gpt2rec/data/movielens.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <utility>

#include "runner/formats/zip_archive.h"
#include "runner/models/gpt2rec/data/generated_movies.h"
#include "tests/support/disk.h"
#include "tests/support/temporary_folder.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;

constexpr char kUsers1m[] = "1::F::1::10::48067\n2::M::56::16::70072\n";
constexpr char kMovies1m[] = "1::Toy Story (1995)::Animation|Children's|Comedy\n3::Caf\xE9 :: Noir (1994)::Drama\n";
constexpr char kRatings1m[] = "1::1::5::978300760\n2::3::3::978302109\r\n\n1::3::4::978300761";

std::string folder_1m(const TemporaryFolder& folder) {
  folder.write("users.dat", kUsers1m);
  folder.write("movies.dat", kMovies1m);
  folder.write("ratings.dat", kRatings1m);
  return folder.path();
}

std::string error_of(const std::string& path) {
  const Result<RatingData> data = load_rating_data(disk(), path);
  return data.ok() ? "" : data.error().message;
}

TEST(MovieLens, reads_the_three_files_of_1m_with_latin1_titles) {
  const TemporaryFolder folder;
  const Result<RatingData> data = load_rating_data(disk(), folder_1m(folder));
  ASSERT_TRUE(data.ok()) << data.error().message;
  EXPECT_EQ(data->form, "MovieLens-1M");
  ASSERT_EQ(data->ratings.size(), 3U);
  EXPECT_EQ(data->ratings[1].user, 2);
  EXPECT_EQ(data->ratings[1].item, 3);
  EXPECT_EQ(data->users.size(), 3U);  // ids 0 to 2
  EXPECT_EQ(data->films.size(), 4U);
  EXPECT_EQ(user_text(data->users[1]),
            "User profile: Gender is Female, Age group is 0-18, Occupation is K-12 student.");
  EXPECT_EQ(user_text(data->users[2]), "User profile: Gender is Male, Age group is 56+, Occupation is self-employed.");
  EXPECT_EQ(film_text(data->films[1]), "Movie: Toy Story (1995). Genres: Animation, Children's, Comedy.");
  EXPECT_EQ(film_text(data->films[3]), "Movie: Caf\xC3\xA9 :: Noir (1994). Genres: Drama.");
  EXPECT_EQ(film_text(data->films[2]), "Movie: Unknown. Genres: Unknown.");
  EXPECT_TRUE(load_rating_data(disk(), folder.file("ratings.dat")).ok());
}

TEST(MovieLens, keeps_titles_that_are_utf8_already) {
  const TemporaryFolder folder;
  folder_1m(folder);
  folder.write("movies.dat", "1::Am\xC3\xA9lie (2001)::Comedy\n3::A (1990)::Drama\n");
  EXPECT_EQ(load_rating_data(disk(), folder.path())->films[1].title, "Am\xC3\xA9lie (2001)");
}

TEST(MovieLens, reads_100k_in_its_own_form_and_in_recboles_with_the_same_texts) {
  const TemporaryFolder own;
  own.write("u.user", "1|24|M|technician|85711\n2|53|F|other|94043\n");
  own.write("u.item",
            "1|Toy Story (1995)|01-Jan-1995||http://x|0|0|0|1|1|1|0|0|0|0|0|0|0|0|0|0|0|0|0\n"
            "2|unknown||||1|0|0|0|0|0|0|0|0|0|0|0|0|0|0|0|0|0|0|0\n");
  own.write("u.data", "1\t1\t5\t874965758\n2\t1\t4\t888550871\n");
  // The line of film 2 has one field more than it may have.
  EXPECT_THAT(error_of(own.path()), HasSubstr("u.item:2: it has 25 fields"));
  own.write("u.item", "1|Toy Story (1995)|01-Jan-1995||http://x|0|0|0|1|1|1|0|0|0|0|0|0|0|0|0|0|0|0|0\n");
  const Result<RatingData> first = load_rating_data(disk(), own.path());
  ASSERT_TRUE(first.ok()) << first.error().message;
  EXPECT_EQ(first->form, "MovieLens-100K");
  for (const char* const name : {"u.data", "u.user", "u.item"}) {
    const Result<RatingData> by_file = load_rating_data(disk(), own.file(name));
    ASSERT_TRUE(by_file.ok()) << by_file.error().message;
    EXPECT_EQ(by_file->form, "MovieLens-100K") << name;
  }

  const TemporaryFolder recbole;
  recbole.write(
      "ml-100k.user",
      "user_id:token\tage:token\tgender:token\toccupation:token\tzip_code:token\n1\t24\tM\ttechnician\t85711\n"
      "2\t53\tF\tother\t94043\n");
  recbole.write("ml-100k.item",
                "item_id:token\tmovie_title:token_seq\trelease_year:token\tclass:token_seq\n"
                "1\tToy Story\t1995\tAnimation Children's Comedy\n");
  recbole.write("ml-100k.inter",
                "user_id:token\titem_id:token\trating:float\ttimestamp:float\n1\t1\t5\t874965758\n"
                "2\t1\t4\t888550871\n");
  for (const char* const name : {"", "ml-100k.inter", "ml-100k.item"}) {
    const Result<RatingData> second = load_rating_data(disk(), recbole.file(name));
    ASSERT_TRUE(second.ok()) << second.error().message;
    EXPECT_EQ(second->ratings.size(), 2U);
    EXPECT_EQ(user_text(second->users[2]), user_text(first->users[2]));
    EXPECT_EQ(film_text(second->films[1]), film_text(first->films[1]));
  }
  recbole.write("other.inter", "x");
  EXPECT_THAT(error_of(recbole.path()), HasSubstr("found ml-100k.inter, other.inter; give the path"));
}

TEST(MovieLens, keeps_what_recbole_has_in_place_of_a_year) {
  const TemporaryFolder folder;
  folder.write("ml.user", "user_id:token\tage:token\tgender:token\toccupation:token\n1\t24\tM\tother\n");
  folder.write("ml.item",
               "item_id:token\tmovie_title:token_seq\trelease_year:token\tclass:token_seq\n"
               "1412\tLand Before Time III (1995)\tV\tAnimation Children's\n2\tNo Year\t\tDrama\n");
  folder.write("ml.inter", "user_id:token\titem_id:token\n1\t1412\n1\t2\n");
  const Result<RatingData> data = load_rating_data(disk(), folder.path());
  ASSERT_TRUE(data.ok()) << data.error().message;
  EXPECT_EQ(data->films[1412].title, "Land Before Time III (1995) (V)") << "as MovieLens' own u.item has it";
  EXPECT_EQ(data->films[2].title, "No Year");
}

// One odd byte must not spoil the titles of the other films.
TEST(MovieLens, reads_only_the_lines_that_are_not_utf8_as_windows_1252) {
  const TemporaryFolder folder;
  folder_1m(folder);
  folder.write("movies.dat", "1::Caf\xC3\xA9 Noir (1981)::Drama\n3::Schindler\x92s List (1993)::Drama|War\n");
  const Result<RatingData> data = load_rating_data(disk(), folder.path());
  ASSERT_TRUE(data.ok()) << data.error().message;
  EXPECT_EQ(data->films[1].title, "Caf\xC3\xA9 Noir (1981)");
  EXPECT_EQ(data->films[3].title, "Schindler\xE2\x80\x99s List (1993)");
  ASSERT_EQ(data->notes.size(), 1U);
  EXPECT_EQ(data->notes[0].second, "movies.dat: line 2 is not UTF-8, read as Windows-1252");
}

TEST(MovieLens, skips_a_byte_order_mark_in_each_file) {
  const TemporaryFolder folder;
  const std::string mark = "\xEF\xBB\xBF";
  folder.write("users.dat", mark + kUsers1m);
  folder.write("movies.dat", mark + kMovies1m);
  folder.write("ratings.dat", mark + kRatings1m);
  const Result<RatingData> data = load_rating_data(disk(), folder.path());
  ASSERT_TRUE(data.ok()) << data.error().message;
  EXPECT_EQ(data->ratings.size(), 3U);
}

TEST(MovieLens, keeps_one_rating_of_a_film_by_the_same_user_and_counts_the_others) {
  const TemporaryFolder folder;
  folder_1m(folder);
  folder.write("ratings.dat", "1::1::5::1\n2::3::3::2\n1::1::2::9\n1::3::4::3\n2::3::1::7\n1::1::1::10\n");
  const Result<RatingData> data = load_rating_data(
      disk(), folder.path(), [] {}, 2);
  ASSERT_TRUE(data.ok()) << data.error().message;
  ASSERT_EQ(data->ratings.size(), 3U);
  EXPECT_EQ(data->ratings[2].item, 3);
  ASSERT_EQ(data->notes.size(), 2U) << "the other note is on the encoding";
  EXPECT_EQ(data->notes[1].first, "equal ratings");
  EXPECT_EQ(data->notes[1].second,
            "3 ratings of a film that the user has rated before left out (user 1 film 1, user 2 film 3 and 1 more)");
}

TEST(MovieLens, reads_the_csv_files_of_20m_and_later_in_which_nothing_describes_users) {
  const TemporaryFolder folder;
  folder.write("movies.csv",
               "movieId,title,genres\n1,Toy Story (1995),Animation|Comedy\r\n"
               "2,\"American President, The (1995)\",(no genres listed)\n3,\"\"\"Great\"\" Cats\",Musical\n");
  folder.write("ratings.csv", "userId,movieId,rating,timestamp\n7,1,3.5,1256677221\n7,3,3.5,1256677486\n9,2,1.0,1\n");
  const Result<RatingData> data = load_rating_data(disk(), folder.path());
  ASSERT_TRUE(data.ok()) << data.error().message;
  EXPECT_EQ(data->ratings.size(), 3U);
  EXPECT_EQ(film_text(data->films[1]), "Movie: Toy Story (1995). Genres: Animation, Comedy.");
  EXPECT_EQ(film_text(data->films[2]), "Movie: American President, The (1995). Genres: Unknown.");
  EXPECT_EQ(data->films[3].title, "\"Great\" Cats");
  EXPECT_EQ(data->users.size(), 10U);
  ASSERT_EQ(data->notes.size(), 1U);
  EXPECT_THAT(data->notes[0].second, HasSubstr("no file describes them"));
  folder.write("ratings.csv", "userId,movieId,rating,timestamp\n7,8,3.5,1\n");
  EXPECT_THAT(error_of(folder.path()), HasSubstr("ratings.csv:2: film 8 is not in"));
  folder.write("ratings.csv", "user,film\n7,8\n");
  EXPECT_THAT(error_of(folder.path()), HasSubstr("ratings.csv:1: found \"user,film\""));
}

TEST(MovieLens, reads_10m_whose_users_have_no_file) {
  const TemporaryFolder folder;
  folder.write("movies.dat", "1::Toy Story (1995)::Comedy\n");
  folder.write("ratings.dat", "1::1::3.5::838985046\n2::1::5::838983525\n");
  const Result<RatingData> data = load_rating_data(disk(), folder.path());
  ASSERT_TRUE(data.ok()) << data.error().message;
  EXPECT_EQ(data->form, "MovieLens-10M");
  EXPECT_EQ(user_text(data->users[2]), "User profile: Gender is Unknown, Age group is Unknown, Occupation is Unknown.");
}

TEST(MovieLens, reads_zip_archives_as_they_are) {
  std::string bytes;
  const ByteSink sink = [&bytes](const void* data, size_t count) -> Status {
    bytes.append(static_cast<const char*>(data), count);
    return {};
  };
  ZipWriter writer(sink, uint64_t{1} << 32);
  for (const auto& [name, text] :
       {std::pair("ml-1m/README", "About"), std::pair("ml-1m/users.dat", kUsers1m),
        std::pair("ml-1m/movies.dat", kMovies1m), std::pair("ml-1m/ratings.dat", kRatings1m)}) {
    ASSERT_TRUE(writer.add(name, text, std::string_view(text).size()).ok());
  }
  ASSERT_TRUE(writer.finish().ok());
  const TemporaryFolder folder;
  const std::string path = folder.write("ml-1m.zip", bytes);
  for (const std::string& given : {path, folder.file("ml-1m")}) {
    const Result<RatingData> data = load_rating_data(disk(), given);
    ASSERT_TRUE(data.ok()) << data.error().message;
    EXPECT_EQ(data->form, "MovieLens-1M");
    EXPECT_EQ(data->path, path);
    EXPECT_EQ(data->ratings.size(), 3U);
  }
}

TEST(MovieLens, an_empty_title_is_an_unknown_one) {
  const TemporaryFolder folder;
  folder_1m(folder);
  folder.write("movies.dat", "1::::\n3::A::Drama\n");
  EXPECT_EQ(film_text(load_rating_data(disk(), folder.path())->films[1]), "Movie: Unknown. Genres: Unknown.");
}

TEST(MovieLens, every_bad_line_is_named_with_its_file_and_number) {
  struct Case {
    const char* file;
    std::string text;
    const char* message;
  };
  const Case cases[] = {
      {"ratings.dat", "1::1::5::1\n9::1::5::1\n", "ratings.dat:2: user 9 is not in"},
      {"ratings.dat", "1::2::5::1\n", "ratings.dat:1: film 2 is not in"},
      {"ratings.dat", "1::1::5::1\n1::1::5\n",
       "ratings.dat:2: it has 3 columns; found \"1::1::5\", expected 4 columns"},
      {"ratings.dat", "1::1::5\n", "ratings.dat:1: found \"1::1::5\", expected `user item`"},
      {"ratings.dat", "x::1::5::1\n", "the user's id is not a whole number from 0 to 10000000"},
      {"ratings.dat", "1::99999999999::5::1\n", "the film's id is not"},
      {"ratings.dat", "", "ratings.dat is empty"},
      {"users.dat", "", "users.dat: found no line, expected at least one"},
      {"users.dat", "1::X::1::10::48067\n", "users.dat:1: the gender is neither F nor M"},
      {"users.dat", "1::F::old::10::48067\n", "the age is not a whole number from 0 to 150"},
      {"users.dat", "1::F::1::21::48067\n", "the occupation's number is not from 0 to 20"},
      {"users.dat", "1::F::1::2::0\n1::F::1::2::0\n", "users.dat:2: the id 1 occurs twice"},
      {"users.dat", "-1::F::1::2::0\n", "the id \"-1\" is not a whole number"},
      {"movies.dat", "1::Toy Story\n",
       "movies.dat:1: it has 2 fields; found \"1::Toy Story\", expected item_id::movie_title::genres"},
      {"movies.dat", "1::" + std::string(70'000, 'x') + "::Drama\n", "it has 70010 bytes"}};
  for (const Case& c : cases) {
    const TemporaryFolder folder;
    folder_1m(folder);
    folder.write(c.file, c.text);
    EXPECT_THAT(error_of(folder.path()), HasSubstr(c.message)) << c.file << ": " << c.text.substr(0, 80);
  }
}

TEST(MovieLens, a_data_set_without_texts_is_refused_with_the_files_that_are_missing) {
  const TemporaryFolder folder;
  EXPECT_THAT(error_of(folder.path()), HasSubstr("found no ratings; expected ratings.dat"));
  EXPECT_THAT(error_of(folder.file("none")), HasSubstr("there is no such file or folder"));
  folder.write("ratings.dat", kRatings1m);
  EXPECT_THAT(error_of(folder.path()), HasSubstr("users.dat is missing; this model reads what users and films are"));
  const TemporaryFolder recbole;
  recbole.write("a.inter", "user_id:token\titem_id:token\n1\t1\n");
  EXPECT_THAT(error_of(recbole.path()), HasSubstr("a.user is missing"));
  recbole.write("a.user", "user_id:token\tname:token\n1\tx\n");
  recbole.write("a.item", "item_id:token\tmovie_title:token_seq\tclass:token_seq\n1\tA\tDrama\n");
  EXPECT_THAT(error_of(recbole.path()), HasSubstr("a.user:1: found no column age; found"));
}

TEST(MovieLens, the_generated_one_is_always_the_same_and_keeps_films_back) {
  const RatingData data = generated_movies();
  EXPECT_EQ(data.ratings.size(), generated_movies().ratings.size());
  EXPECT_GT(data.ratings.size(), 5'000U);
  EXPECT_EQ(data.is_kept_back.size(), data.films.size());
  int64_t kept_back = 0;
  int64_t by_farmers = 0;
  int64_t liked = 0;
  for (const Rating& rating : data.ratings) {
    kept_back += data.is_kept_back[static_cast<size_t>(rating.item)] ? 1 : 0;
    const UserProfile& user = data.users[static_cast<size_t>(rating.user)];
    if (user.occupation != "farmer") continue;
    ++by_farmers;
    liked += data.films[static_cast<size_t>(rating.item)].genres == "Western" ? 1 : 0;
  }
  EXPECT_GT(kept_back, 2'000);
  EXPECT_GT(by_farmers, 1'000);
  EXPECT_GT(liked, by_farmers * 8 / 10);
}

TEST(MovieLens, ages_and_occupations_have_the_guides_names) {
  EXPECT_EQ(age_group_of(1), "0-18");
  EXPECT_EQ(age_group_of(18), "18-24");
  EXPECT_EQ(age_group_of(34), "25-34");
  EXPECT_EQ(age_group_of(50), "50-55");
  EXPECT_EQ(age_group_of(56), "56+");
  EXPECT_EQ(occupation_name(0), "other or not specified");
  EXPECT_EQ(occupation_name(20), "writer");
  EXPECT_EQ(occupation_name(21), "");
}

}  // namespace
}  // namespace lockstep
