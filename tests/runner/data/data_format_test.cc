#include "runner/data/data_format.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

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
