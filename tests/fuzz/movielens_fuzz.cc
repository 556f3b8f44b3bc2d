// Any bytes as the three files of a data set of films: a refusal that names a file, or ratings of users and films that
// are there. The first byte says which format; files are parted by zeros. They are written into a folder in memory.
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "runner/base/check.h"
#include "runner/models/gpt2rec/data/movielens.h"
#include "tests/support/disk.h"

namespace {

constexpr const char* kNames[4][3] = {{"ratings.dat", "users.dat", "movies.dat"},
                                      {"u.data", "u.user", "u.item"},
                                      {"ratings.csv", "tags.csv", "movies.csv"},
                                      {"a.inter", "a.user", "a.item"}};

// One folder for each format.
const std::string& folder_of(size_t format) {
  static const std::string root = [] {
    std::string pattern = "/dev/shm/movielens-fuzz-XXXXXX";
    LOCKSTEP_CHECK(::mkdtemp(pattern.data()) != nullptr, "a folder in memory");
    return pattern;
  }();
  static std::string folders[4];
  if (folders[format].empty()) {
    std::string made = root + "-" + std::to_string(format) + "-XXXXXX";
    LOCKSTEP_CHECK(::mkdtemp(made.data()) != nullptr, "a folder in memory");
    folders[format] = made;
  }
  return folders[format];
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const size_t format = data[0] % 4;
  std::string_view rest(reinterpret_cast<const char*>(data) + 1, size - 1);
  const std::string& folder = folder_of(format);
  for (const char* name : kNames[format]) {
    const std::string_view text = rest.substr(0, rest.find('\0'));
    rest.remove_prefix(std::min(text.size() + 1, rest.size()));
    std::ofstream(folder + "/" + name, std::ios::binary) << text;
  }
  const lockstep::Result<lockstep::RatingData> read = lockstep::load_rating_data(lockstep::disk(), folder);
  if (!read.ok()) {
    LOCKSTEP_CHECK(read.error().message.find(folder) != std::string::npos, "a refusal names the file");
    return 0;
  }
  std::set<std::pair<int32_t, int32_t>> seen;
  for (const lockstep::Rating& rating : read->ratings) {
    LOCKSTEP_CHECK(rating.user >= 0 && static_cast<size_t>(rating.user) < read->users.size(), "a user who is there");
    LOCKSTEP_CHECK(rating.item >= 0 && static_cast<size_t>(rating.item) < read->films.size(), "a film that is there");
    LOCKSTEP_CHECK(seen.emplace(rating.user, rating.item).second, "a user rates a film once");
  }
  return 0;
}
