// A volume that fails while data is opened or read: each reader says which file it was.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "runner/data/cache_file.h"
#include "runner/data/interactions.h"
#include "runner/data/text/byte_pair_encoding.h"
#include "runner/models/gpt2rec/data/movielens.h"
#include "runner/models/jit/data/image_source.h"
#include "runner/models/jit/data/text_files.h"
#include "runner/models/protein/data/structure_source.h"
#include "tests/runner/formats/fault_file_system.h"
#include "tests/support/disk.h"
#include "tests/support/temporary_folder.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

template <typename T>
std::string message_of(const Result<T>& read) {
  return read.ok() ? "it was read" : read.error().message;
}

std::string first_text(FileSystem& fs, const std::string& path) {
  const Result<TextFiles> texts = TextFiles::find(fs, path, [] {});
  return texts.ok() ? message_of(texts->read(0)) : texts.error().message;
}

struct Reader {
  const char* name;
  const char* file;
  const char* text;
  std::function<std::string(FileSystem& fs, const std::string& path)> read;  // "it was read", or the error
};

const std::vector<Reader>& readers() {
  static const std::vector<Reader> all = {
      {"interactions", "ratings.dat", "1::2::3::4\n1::3::3::5\n2::2::3::6\n2::3::4::7\n",
       [](FileSystem& fs, const std::string& path) {
         return message_of(read_interactions(fs, path, {.min_count = 0}));
       }},
      {"movielens", "ratings.dat", "1::2::3::4\n1::3::3::5\n",
       [](FileSystem& fs, const std::string& path) { return message_of(load_rating_data(fs, parent_path(path))); }},
      {"tokenizer", "merges.txt", "#version: 0.2\na b\n",
       [](FileSystem& fs, const std::string& path) {
         return message_of(BytePairEncoding::load(fs, parent_path(path)));
       }},
      {"texts", "notes.txt", "one\ntwo\n", first_text},
      {"texts_as_json", "notes.json", "[\"one\", \"two\"]\n", first_text},
      {"texts_as_json_lines", "notes.jsonl", "\"one\"\n\"two\"\n", first_text}};
  return all;
}

class BrokenData : public testing::TestWithParam<Reader> {
 protected:
  TemporaryFolder folder_;
  std::string path_ = folder_.write(GetParam().file, GetParam().text);
};

TEST_P(BrokenData, that_cannot_be_opened_is_named) {
  (void)folder_.write("users.dat", "1::F::1::10::48067\n");
  (void)folder_.write("movies.dat", "2::A (1995)::Drama\n3::B (1995)::Drama\n");
  (void)folder_.write("vocab.json", "{}");
  FaultFileSystem fs(disk(), FaultFileSystem::Fault::kNone, 0);
  fs.hold_back(GetParam().file);
  EXPECT_THAT(GetParam().read(fs, path_), AllOf(HasSubstr(path_), HasSubstr("Input/output error")));
}

TEST_P(BrokenData, that_is_lost_while_it_is_read_is_named) {
  (void)folder_.write("users.dat", "1::F::1::10::48067\n");
  (void)folder_.write("movies.dat", "2::A (1995)::Drama\n3::B (1995)::Drama\n");
  LostWhileReading fs(disk(), 4);  // MovieLens' users are read before its ratings
  EXPECT_THAT(GetParam().read(fs, path_), AllOf(HasSubstr(folder_.path() + "/"), HasSubstr("Input/output error")));
}

INSTANTIATE_TEST_SUITE_P(readers, BrokenData, testing::ValuesIn(readers()),
                         [](const testing::TestParamInfo<Reader>& info) { return std::string(info.param.name); });

TEST(BrokenFiles, a_line_of_structures_that_is_lost_later_is_named) {
  const TemporaryFolder folder;
  const std::string path = folder.write("chains.jsonl", "{\"name\": \"a\"}\n{\"name\": \"b\"}\n");
  LostWhileReading fs(disk(), 30);  // the first reading, for the beginnings of lines
  const auto source = find_structures(fs, path, SplitLists::kIgnored);
  ASSERT_TRUE(source.ok()) << source.error().message;
  EXPECT_THAT(message_of((*source)->read(1)), AllOf(HasSubstr(path), HasSubstr("Input/output error")));
}

TEST(BrokenFiles, a_cache_that_cannot_be_opened_is_named) {
  const TemporaryFolder folder;
  FaultFileSystem fs(disk(), FaultFileSystem::Fault::kNone, 0);
  fs.hold_back("a.cache");
  EXPECT_THAT(message_of(map_cache_file(fs, folder.write("a.cache", "x"))), HasSubstr("a.cache: Input/output error"));
}

TEST(BrokenFiles, data_sets_that_cannot_be_read_are_no_candidates) {
  const TemporaryFolder folder;
  const std::string path = folder.write("ratings.dat", "1::2::3::4\n");
  EXPECT_TRUE(has_known_format(disk(), path));
  FaultFileSystem fs(disk(), FaultFileSystem::Fault::kNone, 0);
  fs.hold_back("ratings.dat");
  EXPECT_FALSE(has_known_format(fs, path));
}

}  // namespace
}  // namespace lockstep
