#include "runner/formats/open_text.h"

#include <zlib.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <limits>
#include <optional>
#include <utility>

#include "runner/base/plural.h"
#include "runner/base/utf8.h"

namespace lockstep {
namespace {

constexpr size_t kForeignShown = 3;
constexpr std::string_view kUtf8Mark = "\xEF\xBB\xBF";
constexpr std::string_view kUtf16LittleMark = "\xFF\xFE";
constexpr std::string_view kUtf16BigMark = "\xFE\xFF";
constexpr std::string_view kUtf32LittleMark("\xFF\xFE\0\0", 4);
constexpr std::string_view kUtf32BigMark("\0\0\xFE\xFF", 4);
constexpr std::string_view kGzipMagic = "\x1F\x8B";
constexpr char32_t kReplacement = 0xFFFD;

// The characters of the bytes 0x80 to 0x9F, where Windows-1252 differs from Latin-1.
constexpr std::array<char16_t, 32> kWindows1252 = {0x20AC, 0x0081, 0x201A, 0x0192, 0x201E, 0x2026, 0x2020, 0x2021,
                                                   0x02C6, 0x2030, 0x0160, 0x2039, 0x0152, 0x008D, 0x017D, 0x008F,
                                                   0x0090, 0x2018, 0x2019, 0x201C, 0x201D, 0x2022, 0x2013, 0x2014,
                                                   0x02DC, 0x2122, 0x0161, 0x203A, 0x0153, 0x009D, 0x017E, 0x0178};

void append_utf8(char32_t code, std::string& out) {
  const auto put = [&](char32_t byte) { out.push_back(static_cast<char>(static_cast<unsigned char>(byte))); };
  if (code < 0x80) {
    put(code);
  } else if (code < 0x800) {
    put(0xC0 | (code >> 6));
    put(0x80 | (code & 0x3F));
  } else if (code < 0x10000) {
    put(0xE0 | (code >> 12));
    put(0x80 | ((code >> 6) & 0x3F));
    put(0x80 | (code & 0x3F));
  } else {
    put(0xF0 | (code >> 18));
    put(0x80 | ((code >> 12) & 0x3F));
    put(0x80 | ((code >> 6) & 0x3F));
    put(0x80 | (code & 0x3F));
  }
}

// `text`: without its mark. A surrogate without its other half becomes U+FFFD; an odd last byte is left out.
std::string utf8_of_utf16(std::string_view text, bool is_big_endian) {
  const auto unit_at = [&](size_t at) -> char32_t {
    const auto first = static_cast<unsigned char>(text[at]);
    const auto second = static_cast<unsigned char>(text[at + 1]);
    return is_big_endian ? char32_t{first} << 8 | second : char32_t{second} << 8 | first;
  };
  std::string out;
  out.reserve(text.size());
  for (size_t at = 0; at + 1 < text.size(); at += 2) {
    const char32_t unit = unit_at(at);
    const bool is_high = unit >= 0xD800 && unit < 0xDC00;
    const bool is_low = unit >= 0xDC00 && unit < 0xE000;
    const char32_t next = is_high && at + 3 < text.size() ? unit_at(at + 2) : 0;
    if (is_high && next >= 0xDC00 && next < 0xE000) {
      append_utf8(0x10000 + ((unit - 0xD800) << 10) + (next - 0xDC00), out);
      at += 2;
    } else {
      append_utf8(is_high || is_low ? kReplacement : unit, out);
    }
  }
  return out;
}

// Without a mark. Every second byte of a text of Latin letters in UTF-16 is 0, and no byte is a control character.
bool looks_like_utf16(std::string_view text) {
  if (text.starts_with(kUtf16LittleMark) || text.starts_with(kUtf16BigMark)) return false;
  constexpr size_t kLookedAt = 256;
  constexpr size_t kBytesMin = 8;
  const std::string_view head = text.substr(0, std::min(text.size(), kLookedAt) / 2 * 2);
  std::array<size_t, 2> zeros{};
  for (size_t at = 0; at < head.size(); ++at) zeros[at % 2] += head[at] == '\0' ? 1 : 0;
  const size_t most = std::max(zeros[0], zeros[1]);
  const bool has_other_controls = std::any_of(head.begin(), head.end(), [](char c) {
    return c != '\0' && c != '\t' && c != '\n' && c != '\r' && static_cast<unsigned char>(c) < 0x20;
  });
  return head.size() >= kBytesMin && std::min(zeros[0], zeros[1]) == 0 && most * 4 >= head.size() &&
         !has_other_controls;
}

enum class Unpacked { kWhole, kCut, kDamaged, kTooLarge };

// Unpacks the members of a gzip file one after the other; bytes 0 may follow them. kCut: the data end inside a member.
Unpacked gunzip(std::string_view packed, uint64_t bytes_max, std::string& out) {
  z_stream stream = {};
  constexpr int kGzip = 16;
  if (inflateInit2(&stream, MAX_WBITS + kGzip) != Z_OK) return Unpacked::kDamaged;
  Unpacked result = Unpacked::kCut;
  std::array<char, 65'536> piece{};
  size_t taken = 0;
  while (true) {
    const size_t before = std::min<size_t>(packed.size() - taken, std::numeric_limits<uInt>::max());
    stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(packed.data() + taken));  // zlib's own signature
    stream.avail_in = static_cast<uInt>(before);
    stream.next_out = reinterpret_cast<Bytef*>(piece.data());
    stream.avail_out = static_cast<uInt>(piece.size());
    const int status = inflate(&stream, Z_NO_FLUSH);
    taken += before - stream.avail_in;
    const size_t got = piece.size() - stream.avail_out;
    if (got > bytes_max - out.size()) {
      out.append(piece.data(), static_cast<size_t>(bytes_max) - out.size());
      result = Unpacked::kTooLarge;
      break;
    }
    out.append(piece.data(), got);
    if (status == Z_STREAM_END) {
      const std::string_view rest = packed.substr(taken);
      result = Unpacked::kWhole;
      if (rest.find_first_not_of('\0') == std::string_view::npos) break;
      if (inflateReset(&stream) == Z_OK) continue;
    }
    if (status == Z_BUF_ERROR || (status == Z_OK && taken == packed.size() && got < piece.size())) {
      result = Unpacked::kCut;
      break;
    }
    if (status != Z_OK) {
      result = Unpacked::kDamaged;
      break;
    }
  }
  inflateEnd(&stream);
  return result;
}

std::string too_large(const std::string& name, uint64_t bytes, uint64_t bytes_max) {
  return name + " cannot be read: it has " + std::to_string(bytes) + " bytes, at most " + std::to_string(bytes_max) +
         " are read";
}

void end_lines_with_newline(std::string& text) {
  for (size_t at = text.find('\r'); at != std::string::npos; at = text.find('\r', at + 1)) {
    if (at + 1 == text.size() || text[at + 1] != '\n') text[at] = '\n';
  }
}

// Each line that is not UTF-8 from Windows-1252.
void decode_lines(OpenedText& opened) {
  std::string out;
  out.reserve(opened.text.size() + opened.text.size() / 16);
  std::string_view rest = opened.text;
  for (int64_t number = 1; !rest.empty(); ++number) {
    const size_t end = rest.find('\n');
    const std::string_view line = rest.substr(0, end == std::string_view::npos ? rest.size() : end + 1);
    rest.remove_prefix(line.size());
    if (is_utf8(line)) {
      out += line;
      continue;
    }
    out += utf8_of_windows1252(line);
    ++opened.foreign_lines;
    if (opened.foreign_first.size() < kForeignShown) opened.foreign_first.push_back(number);
  }
  opened.text = std::move(out);
}

// Removes or converts what a byte order mark says; what is then left is bytes of UTF-8 or of lines in Windows-1252.
void apply_mark(OpenedText& opened) {
  std::string& text = opened.text;
  const bool is_big = text.starts_with(kUtf16BigMark);
  if (is_big || text.starts_with(kUtf16LittleMark)) {
    text = utf8_of_utf16(std::string_view(text).substr(kUtf16BigMark.size()), is_big);
    opened.was_utf16 = true;
  } else if (text.starts_with(kUtf8Mark)) {
    text.erase(0, kUtf8Mark.size());
  }
}

// A folder, a pipe or a device, which would have to be waited for. A link counts as what it leads to.
bool is_special_file(const std::string& path) {
  std::error_code ignored;
  const std::filesystem::file_status status = std::filesystem::status(path, ignored);
  return std::filesystem::exists(status) && !std::filesystem::is_regular_file(status);
}

}  // namespace

std::string utf8_of_windows1252(std::string_view text) {
  std::string out;
  out.reserve(text.size() + text.size() / 8);
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    append_utf8(byte >= 0x80 && byte < 0xA0 ? kWindows1252[byte - 0x80] : char32_t{byte}, out);
  }
  return out;
}

std::string stray_text(std::string_view head) {
  constexpr std::array<std::pair<std::string_view, const char*>, 5> kMagics = {
      {{"PK\x03\x04", "is a zip archive: unpack it first (unzip)"},
       {"\xFD"
        "7zXZ",
        "is compressed with xz: unpack it first (unxz)"},
       {"BZh", "is compressed with bzip2: unpack it first (bunzip2)"},
       {"\x28\xB5\x2F\xFD", "is compressed with zstd: unpack it first (unzstd)"},
       {"PAR1", "is a Parquet file: write it as text first (pandas: read_parquet, then to_csv)"}}};
  for (const auto& [magic, what] : kMagics) {
    const bool is_bzip2 = magic == "BZh";
    constexpr std::string_view kBlock = "1AY&SY";  // after the digit of the block size
    if (head.starts_with(magic) && (!is_bzip2 || head.substr(std::min<size_t>(4, head.size())).starts_with(kBlock))) {
      return what;
    }
  }
  if (head.starts_with(kUtf32LittleMark) || head.starts_with(kUtf32BigMark)) {
    return "is text in UTF-32: save it as UTF-8 (iconv -f UTF-32 -t UTF-8)";
  }
  if (looks_like_utf16(head)) {
    return "looks like text in UTF-16 without a byte order mark: save it as UTF-8 (iconv -f UTF-16LE -t UTF-8)";
  }
  return stray_file(head);
}

std::string encoding_note(const OpenedText& opened) {
  if (opened.was_utf16) return "read as UTF-16";
  if (opened.foreign_lines == 0) return {};
  std::string numbers = joined(opened.foreign_first, ", ", [](int64_t line) { return std::to_string(line); });
  const int64_t more = opened.foreign_lines - std::ssize(opened.foreign_first);
  if (more > 0) numbers += " and " + std::to_string(more) + " more";
  return opened.foreign_lines == 1
             ? "line " + numbers + " is not UTF-8, read as Windows-1252"
             : std::to_string(opened.foreign_lines) + " lines are not UTF-8, read as Windows-1252: " + numbers;
}

Result<OpenedText> decode_text(std::string bytes, const std::string& name, uint64_t bytes_max) {
  OpenedText opened;
  opened.text = std::move(bytes);
  if (opened.text.starts_with(kGzipMagic)) {
    std::string unpacked;
    switch (gunzip(opened.text, bytes_max, unpacked)) {
      case Unpacked::kWhole:
        break;
      case Unpacked::kTooLarge:
        return invalid(name + " cannot be read: unpacked (it is compressed with gzip) it has more than " +
                       std::to_string(bytes_max) + " bytes");
      case Unpacked::kCut:
        return invalid(name + " is compressed with gzip and ends too early: copy or download it again");
      case Unpacked::kDamaged:
        return invalid(name + " is compressed with gzip and damaged: copy or download it again");
    }
    opened.text = std::move(unpacked);
    opened.was_gzip = true;
  }
  if (opened.text.size() > bytes_max) return invalid(too_large(name, opened.text.size(), bytes_max));
  if (const std::string stray = stray_text(opened.text); !stray.empty()) return invalid(name + " " + stray);
  apply_mark(opened);
  end_lines_with_newline(opened.text);
  if (!is_utf8(opened.text)) decode_lines(opened);
  return opened;
}

Result<OpenedText> open_text(FileSystem& fs, const std::string& path, uint64_t bytes_max,
                             const std::function<void()>& on_progress) {
  if (is_special_file(path)) return invalid(path + " cannot be read: it is not a regular file");
  TRY_ASSIGN(std::string bytes, read_file(fs, path, bytes_max, on_progress));
  return decode_text(std::move(bytes), path, bytes_max);
}

std::string head_of_text(FileSystem& fs, const std::string& path, size_t bytes_max) {
  Result<std::string> head = is_special_file(path) ? std::string() : read_part(fs, path, 0, bytes_max);
  if (!head.ok()) return {};
  OpenedText opened;
  opened.text = std::move(*head);
  if (opened.text.starts_with(kGzipMagic)) {
    std::string unpacked;
    gunzip(opened.text, bytes_max, unpacked);
    opened.text = std::move(unpacked);
  }
  if (!stray_text(opened.text).empty()) return {};
  apply_mark(opened);
  end_lines_with_newline(opened.text);
  return std::move(opened.text);
}

}  // namespace lockstep
