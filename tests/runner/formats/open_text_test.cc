#include "runner/formats/open_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <zlib.h>

#include "tests/support/disk.h"
#include "tests/support/temporary_folder.h"

namespace lockstep {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr uint64_t kBytesMax = 1 << 20;

OpenedText decode(const std::string& bytes) {
  Result<OpenedText> opened = decode_text(bytes, "file", kBytesMax);
  EXPECT_TRUE(opened.ok()) << opened.error().message;
  return opened.ok() ? std::move(opened).value() : OpenedText{};
}

std::string refused(const std::string& bytes, uint64_t bytes_max = kBytesMax) {
  const Result<OpenedText> opened = decode_text(bytes, "file", bytes_max);
  return opened.ok() ? "" : opened.error().message;
}

std::string gzip(const std::string& text) {
  z_stream stream = {};
  EXPECT_EQ(deflateInit2(&stream, 6, Z_DEFLATED, MAX_WBITS + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
  std::string packed(text.size() + 100, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(packed.data());
  stream.avail_out = static_cast<uInt>(packed.size());
  EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
  packed.resize(packed.size() - stream.avail_out);
  deflateEnd(&stream);
  return packed;
}

std::string utf16(std::u16string_view text, bool big) {
  std::string bytes;
  for (const char16_t unit : text) {
    const char high = static_cast<char>(unit >> 8);
    const char low = static_cast<char>(unit & 0xFF);
    bytes += big ? std::string{high, low} : std::string{low, high};
  }
  return bytes;
}

TEST(OpenText, leaves_utf8_as_it_is) {
  for (const char* text : {"", "1 2\n", "a\r\nb\r\n", "Am\xC3\xA9lie \xE2\x80\x94 \xF0\x9F\x8E\xAC and more of it\n"}) {
    const OpenedText opened = decode(text);
    EXPECT_EQ(opened.text, text);
    EXPECT_EQ(encoding_note(opened), "");
  }
}

TEST(OpenText, removes_a_byte_order_mark_and_reads_utf16_by_its_mark) {
  EXPECT_EQ(decode("\xEF\xBB\xBF"
                   "1 2\n")
                .text,
            "1 2\n");
  const std::string expected = "Caf\xC3\xA9 \xF0\x9F\x8E\xAC\r\n";
  for (const bool big : {false, true}) {
    const OpenedText opened =
        decode(utf16(u"\xFEFF"
                     u"Café \xD83C\xDFAC\r\n",
                     big));
    EXPECT_EQ(opened.text, expected);
    EXPECT_EQ(encoding_note(opened), "read as UTF-16");
  }
  EXPECT_EQ(decode(utf16(u"\xFEFF"
                         u"a\xD83C"
                         u"b",
                         false))
                .text,
            "a\xEF\xBF\xBD"
            "b")
      << "half of a character";
}

TEST(OpenText, refuses_utf16_without_a_mark_and_utf32_by_name) {
  for (const bool big : {false, true}) {
    EXPECT_THAT(refused(utf16(u"1 2\n3 4\n", big)), HasSubstr("file looks like text in UTF-16 without a byte order"));
  }
  EXPECT_THAT(refused(std::string("\xFF\xFE\0\0a\0\0\0", 8)), HasSubstr("UTF-32"));
  EXPECT_EQ(refused(std::string("\0\1\0\1\0\1\0\1\0\1\0\1", 12)), "") << "no text at all: its reader says so";
}

// One odd byte among titles in UTF-8 must not spoil the others.
TEST(OpenText, reads_only_the_lines_that_are_not_utf8_as_windows_1252) {
  const OpenedText opened = decode("Caf\xC3\xA9\nSchindler\x92s \x80\nPok\xC3\xA9mon\nAm\xE9lie");
  EXPECT_EQ(opened.text, "Caf\xC3\xA9\nSchindler\xE2\x80\x99s \xE2\x82\xAC\nPok\xC3\xA9mon\nAm\xC3\xA9lie");
  EXPECT_EQ(opened.foreign_lines, 2);
  EXPECT_THAT(opened.foreign_first, ElementsAre(2, 4));
  EXPECT_EQ(encoding_note(opened), "2 lines are not UTF-8, read as Windows-1252: 2, 4");
  EXPECT_EQ(encoding_note(decode("a\nb\xE9\n")), "line 2 is not UTF-8, read as Windows-1252");
  std::string many;
  for (int i = 0; i < 53; ++i) many += "\xE9\n";
  EXPECT_EQ(encoding_note(decode(many)), "53 lines are not UTF-8, read as Windows-1252: 1, 2, 3 and 50 more");
}

TEST(OpenText, ends_lines_of_a_carriage_return_alone) {
  EXPECT_EQ(decode("1 2\r3 4\r").text, "1 2\n3 4\n");
  EXPECT_EQ(decode("1\r\n2\r3\n").text, "1\r\n2\n3\n");
}

TEST(OpenText, unpacks_gzip_of_several_members) {
  const OpenedText opened = decode(gzip("\xEF\xBB\xBF"
                                        "1 2\n") +
                                   gzip("3 4\n") + std::string(20, '\0'));
  EXPECT_EQ(opened.text, "1 2\n3 4\n");
  EXPECT_TRUE(opened.was_gzip);
  EXPECT_EQ(decode(gzip(std::string(200'000, 'x'))).text.size(), 200'000U);
}

TEST(OpenText, refuses_gzip_that_is_damaged_cut_or_grows_too_large) {
  const std::string packed = gzip(std::string(100'000, 'x'));
  EXPECT_THAT(refused(packed.substr(0, packed.size() - 12)), HasSubstr("ends too early"));
  EXPECT_THAT(refused(packed.substr(0, 20) + "damaged" + packed.substr(27)), HasSubstr("damaged"));
  EXPECT_THAT(refused("\x1F\x8B packed"), HasSubstr("file is compressed with gzip and damaged"));
  EXPECT_THAT(refused(packed, 99'999), HasSubstr("more than 99999 bytes"));
  EXPECT_EQ(refused(packed, 100'000), "");
}

TEST(OpenText, names_what_is_no_text) {
  EXPECT_THAT(refused("version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 9\n"),
              HasSubstr("file is a Git LFS pointer, not the file itself: fetch it with `git lfs pull`"));
  for (const char* page : {"<!DOCTYPE html>\n<html>", "\n <HTML lang=en>", "\xEF\xBB\xBF<html>"}) {
    EXPECT_THAT(refused(page), HasSubstr("file is a web page (HTML)"));
  }
  EXPECT_THAT(refused("<?xml version=\"1.0\"?><Error/>"), HasSubstr("XML"));
  EXPECT_THAT(refused("PK\x03\x04junk"), HasSubstr("zip"));
  EXPECT_THAT(refused("BZh91AY&SYjunk"), HasSubstr("bunzip2"));
  EXPECT_EQ(refused("BZh1 42\n"), "");
  EXPECT_THAT(refused("\xFD"
                      "7zXZjunk"),
              HasSubstr("unxz"));
  EXPECT_THAT(refused("PAR1junk"), HasSubstr("Parquet"));
  EXPECT_THAT(stray_file("<!doctype HTML>"), HasSubstr("web page"));
  EXPECT_THAT(stray_file("PK\x03\x04"), IsEmpty()) << "weights are zip archives";
}

TEST(OpenText, reads_files_and_names_those_that_it_cannot_read) {
  const TemporaryFolder folder;
  int signs = 0;
  const Result<OpenedText> opened = open_text(disk(), folder.write("a.txt", "1 2\n"), kBytesMax, [&] { ++signs; });
  ASSERT_TRUE(opened.ok()) << opened.error().message;
  EXPECT_EQ(opened->text, "1 2\n");
  EXPECT_EQ(signs, 1);
  EXPECT_EQ(open_text(disk(), folder.file("none"), kBytesMax).error().code, ErrorCode::kNotFound);
  EXPECT_THAT(open_text(disk(), folder.path(), kBytesMax).error().message, HasSubstr("it is not a regular file"));
  EXPECT_THAT(open_text(disk(), folder.file("a.txt"), 3).error().message,
              HasSubstr("a.txt has 4 bytes; at most 3 are read"));
  const std::string pipe = folder.file("pipe");
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_THAT(open_text(disk(), pipe, kBytesMax).error().message, HasSubstr("it is not a regular file"));
}

TEST(HeadOfText, is_what_can_be_decoded_of_the_first_bytes) {
  const TemporaryFolder folder;
  EXPECT_EQ(head_of_text(disk(),
                         folder.write("a",
                                      "\xEF\xBB\xBF"
                                      "1 2\r3 4\r"),
                         8),
            "1 2\n3")
      << "cut";
  EXPECT_EQ(head_of_text(disk(), folder.write("b", gzip(std::string(100'000, 'x'))), 64), std::string(64, 'x'));
  EXPECT_EQ(head_of_text(disk(), folder.write("c", "PK\x03\x04"), 64), "");
  EXPECT_EQ(head_of_text(disk(), folder.file("none"), 64), "");
}

}  // namespace
}  // namespace lockstep
