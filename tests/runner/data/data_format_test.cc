#include "runner/data/data_format.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "runner/data/text/text_files.h"
#include "tests/support/temporary_folder.h"

namespace lockstep {
namespace {

void touch(const std::string& path) {
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  std::ofstream(path) << "x";
}

TEST(DataFormat, files_are_counted_by_their_endings_and_hidden_ones_are_not) {
  const TemporaryFolder folder;
  for (const char* name :
       {"a/1.JPG", "a/2.jpeg", "b/3.png", "notes.txt", "LICENSE", ".lockstep/x.txt", ".hidden.txt"}) {
    touch(folder.file(name));
  }
  const FilesSeen seen = look_at_files(folder.path());
  EXPECT_EQ(seen.images, 3);
  EXPECT_EQ(seen.texts, 1);
  EXPECT_EQ(seen.others, 1);
  EXPECT_EQ(to_text(seen), "3 images and 1 text file and 1 other file");
  EXPECT_EQ(likely_format(seen), DataFormat::kImages);
  EXPECT_FALSE(look_at_files(folder.path(), 2).are_all);
  EXPECT_EQ(look_at_files(folder.file("notes.txt")).texts, 1);
  EXPECT_EQ(to_text(look_at_files("/nowhere")), "no files");
}

TEST(DataFormat, captions_beside_images_and_links_to_folders_of_images_are_images) {
  const TemporaryFolder folder;
  for (const char* name : {"data/1.png", "data/1.txt", "data/1.json"}) touch(folder.file(name));
  EXPECT_EQ(likely_format(look_at_files(folder.file("data"))), DataFormat::kImages);
  touch(folder.file("linked/classes.txt"));
  std::filesystem::create_directory_symlink(folder.file("data"), folder.file("linked/cat"));
  EXPECT_EQ(look_at_files(folder.file("linked")).images, 1);
  EXPECT_EQ(likely_format(look_at_files(folder.file("linked"))), DataFormat::kImages);
  std::filesystem::create_directory_symlink(folder.file("linked"), folder.file("linked/itself"));
  EXPECT_FALSE(look_at_files(folder.file("linked")).are_all);
}

TEST(TextFiles, give_each_line_once_however_it_lies_in_the_pieces) {
  const TemporaryFolder folder;
  std::string file = "\xEF\xBB\xBF";
  std::vector<std::string> lines;
  for (int i = 0; i < 60; ++i) {
    lines.push_back(std::to_string(i) + std::string(static_cast<size_t>(i * i), 'x'));
    file += lines.back() + (i % 2 == 0 ? "\n" : "\r\n");
  }
  folder.write("lines.txt", file);
  const TextFiles texts = *TextFiles::find(folder.path(), [] {});
  EXPECT_GT(texts.size(), 10);
  std::vector<std::string> read;
  for (int64_t piece = 0; piece < texts.size(); ++piece) {
    const std::vector<std::string> part = *texts.read(piece);
    read.insert(read.end(), part.begin(), part.end());
  }
  EXPECT_EQ(read, lines);
}

TEST(TextFiles, a_line_without_an_end_is_refused_when_it_is_too_long) {
  const TemporaryFolder folder;
  folder.write("dump.txt", std::string((size_t{16} << 20) + 100, 'x'));
  const TextFiles texts = *TextFiles::find(folder.path(), [] {});
  const auto read = texts.read(0);
  ASSERT_FALSE(read.ok());
  EXPECT_NE(read.error().message.find("a line of more than 16 MiB"), std::string::npos);
}

TEST(DataFormat, only_a_folder_of_the_other_kind_alone_is_refused) {
  EXPECT_FALSE(check_format(DataFormat::kImages, {.texts = 2}, "P").ok());
  EXPECT_FALSE(check_format(DataFormat::kTokens, {.images = 2, .others = 1}, "P").ok());
  EXPECT_TRUE(check_format(DataFormat::kImages, {.images = 1, .texts = 2}, "P").ok());
  EXPECT_TRUE(check_format(DataFormat::kTokens, {.images = 2, .texts = 1}, "P").ok());
  EXPECT_TRUE(check_format(DataFormat::kImages, {.texts = 2, .others = 1}, "P").ok());  // an image may have any name
  EXPECT_TRUE(check_format(DataFormat::kImages, {.texts = 2, .are_all = false}, "P").ok());
}

TEST(TextsOfJson, are_strings_texts_or_prompts_with_answers) {
  const auto texts = texts_of_json(R"([" a ", {"text": "b"}, {"prompt": "c", "answer": "d"}, {"text": "  "}])", "f");
  ASSERT_TRUE(texts.ok()) << texts.error().message;
  EXPECT_EQ(*texts, (std::vector<std::string>{"a", "b", "c\nd"}));
  EXPECT_EQ(texts_of_json(R"({"text": "one"})", "f").value(), std::vector<std::string>{"one"});
  const auto number = texts_of_json(R"(["a", {"text": 5}])", "f");
  ASSERT_FALSE(number.ok());
  EXPECT_NE(number.error().message.find("record 2 is no text"), std::string::npos);
}

}  // namespace
}  // namespace lockstep
