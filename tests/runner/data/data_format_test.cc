#include "runner/models/jit/data/data_format.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "runner/models/jit/data/text_files.h"
#include "tests/support/disk.h"
#include "tests/support/temporary_folder.h"

namespace lockstep {
namespace {

using testing::HasSubstr;

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
  const FilesSeen seen = count_files(folder.path());
  EXPECT_EQ(seen.images, 3);
  EXPECT_EQ(seen.texts, 1);
  EXPECT_EQ(seen.others, 1);
  EXPECT_EQ(to_text(seen), "3 images and 1 text file and 1 other file");
  EXPECT_EQ(likely_format(seen), DataFormat::kImages);
  EXPECT_FALSE(count_files(folder.path(), 2).are_all);
  EXPECT_EQ(count_files(folder.file("notes.txt")).texts, 1);
  EXPECT_EQ(to_text(count_files("/nowhere")), "no files");
}

TEST(DataFormat, captions_beside_images_and_links_to_folders_of_images_are_images) {
  const TemporaryFolder folder;
  for (const char* name : {"data/1.png", "data/1.txt", "data/1.json"}) touch(folder.file(name));
  EXPECT_EQ(likely_format(count_files(folder.file("data"))), DataFormat::kImages);
  touch(folder.file("linked/classes.txt"));
  std::filesystem::create_directory_symlink(folder.file("data"), folder.file("linked/cat"));
  EXPECT_EQ(count_files(folder.file("linked")).images, 1);
  EXPECT_EQ(likely_format(count_files(folder.file("linked"))), DataFormat::kImages);
  std::filesystem::create_directory_symlink(folder.file("linked"), folder.file("linked/itself"));
  EXPECT_FALSE(count_files(folder.file("linked")).are_all);
}

std::vector<std::string> all_texts(const TextFiles& texts) {
  std::vector<std::string> read;
  for (int64_t piece = 0; piece < texts.size(); ++piece) {
    const Result<std::vector<std::string>> part = texts.read(piece);
    EXPECT_TRUE(part.ok()) << texts.name(piece) << ": " << part.error().message;
    if (part.ok()) read.insert(read.end(), part->begin(), part->end());
  }
  return read;
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
  const TextFiles texts = *TextFiles::find(disk(), folder.path(), [] {});
  EXPECT_GT(texts.size(), 10);
  EXPECT_EQ(all_texts(texts), lines);
}

TEST(TextFiles, give_each_record_of_a_list_once_in_small_pieces) {
  const TemporaryFolder folder;
  std::string file = " [";
  std::vector<std::string> records;
  for (int i = 0; i < 400; ++i) {
    const std::string filling(static_cast<size_t>(i % 90), ',');
    const std::string number = std::to_string(i);
    if (i > 0) file += i % 3 == 0 ? ",\n" : " , ";
    if (i % 3 == 0) {
      records.push_back(number + "]\"}, {" + filling);
      file += R"(")" + number + R"(]\"}, {)" + filling + R"(")";
    } else if (i % 3 == 1) {
      records.push_back(number + "\\" + filling);
      file += R"({"ids": [1, [2, 3]], "text": ")" + number + R"(\\)" + filling + R"("})";
    } else {
      records.push_back(number + "\n" + filling + "ä");
      file += R"({"prompt": ")" + number + R"(", "answer": ")" + filling + R"(ä"})";
    }
  }
  folder.write("list.json", file + "\n] \n");
  const TextFiles texts = *TextFiles::find(disk(), folder.file("list.json"), [] {});
  EXPECT_GT(texts.size(), 5);
  EXPECT_LT(texts.read(1)->size(), 150U);
  EXPECT_EQ(all_texts(texts), records);
}

TEST(TextFiles, read_one_json_text_in_each_line) {
  const TemporaryFolder folder;
  std::string lines;
  std::vector<std::string> expected;
  for (int i = 0; i < 500; ++i) {
    const std::string number = std::to_string(i);
    lines +=
        i % 2 == 0 ? R"({"text": "text )" + number + "\"}\n" : R"({"prompt": "text", "answer": ")" + number + "\"}\r\n";
    expected.push_back((i % 2 == 0 ? "text " : "text\n") + number);
  }
  for (const char* name : {"lines.json", "lines.jsonl", "lines.NDJSON"}) {
    for (const char* mark : {"", "\xEF\xBB\xBF"}) {
      const std::string path = folder.write(name, mark + lines);
      const Result<TextFiles> texts = TextFiles::find(disk(), path, [] {});
      ASSERT_TRUE(texts.ok()) << texts.error().message;
      EXPECT_GT(texts->size(), 1) << "a large file is read in pieces";
      EXPECT_EQ(all_texts(*texts), expected) << name;
    }
  }
  const std::string bad = folder.write("bad.jsonl", "{\"text\": \"a\"}\n{\"text\": \n");
  EXPECT_THAT(TextFiles::find(disk(), bad, [] {})->read(0).error().message,
              HasSubstr("the line {\"text\": is no JSON"));
  const std::string other = folder.write("other.jsonl", "{\"words\": \"a\"}\n");
  EXPECT_THAT(TextFiles::find(disk(), other, [] {})->read(0).error().message, HasSubstr("is no text: expected"));
  const std::string pretty = folder.write("pretty.json", "{\n  \"text\": \"one\"\n}\n");
  EXPECT_EQ(all_texts(*TextFiles::find(disk(), pretty, [] {})), std::vector<std::string>{"one"});
}

TEST(TextFiles, name_the_record_of_a_long_list_that_is_no_text) {
  const TemporaryFolder folder;
  std::string file = "[";
  for (int i = 1; i <= 900; ++i) file += i == 777 ? R"({"title": 5}, )" : R"("a text of some length", )";
  folder.write("list.json", file + R"("the end"])");
  const TextFiles texts = *TextFiles::find(disk(), folder.path(), [] {});
  int64_t broken = 0;
  for (int64_t piece = 0; piece < texts.size(); ++piece) {
    const auto read = texts.read(piece);
    if (read.ok()) continue;
    ++broken;
    EXPECT_NE(read.error().message.find("record 777 is no text"), std::string::npos) << read.error().message;
  }
  EXPECT_EQ(broken, 1);
}

TEST(TextFiles, say_what_is_wrong_with_a_long_file_that_is_no_list) {
  const std::string list = R"("a", )" + std::string(6000, ' ');
  for (const std::string& file : {"[" + list + R"("b")", "[" + list + R"("b"] 5)", "[" + list + "]",
                                  "[" + list + R"(, "b"])", "[" + list + R"("b)", "[" + list + "}"}) {
    const TemporaryFolder folder;
    folder.write("list.json", file);
    const TextFiles texts = *TextFiles::find(disk(), folder.path(), [] {});
    ASSERT_EQ(texts.size(), 1) << file;
    const auto read = texts.read(0);
    ASSERT_FALSE(read.ok()) << file;
    EXPECT_NE(read.error().message.find("list.json"), std::string::npos) << read.error().message;
  }
}

TEST(TextFiles, a_line_without_an_end_is_refused_when_it_is_too_long) {
  const TemporaryFolder folder;
  folder.write("dump.txt", std::string((size_t{16} << 20) + 100, 'x'));
  const TextFiles texts = *TextFiles::find(disk(), folder.path(), [] {});
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
