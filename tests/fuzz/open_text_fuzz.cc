// Any bytes as a text file: a refusal that begins with the file's name, or UTF-8 whose lines next_line() can part.
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "runner/base/check.h"
#include "runner/base/utf8.h"
#include "runner/formats/open_text.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  constexpr uint64_t kBytesMax = 1 << 20;
  std::string bytes(reinterpret_cast<const char*>(data), size);
  const bool was_utf8 = lockstep::is_utf8(bytes);
  const lockstep::Result<lockstep::OpenedText> opened = lockstep::decode_text(std::move(bytes), "fuzz", kBytesMax);
  if (!opened.ok()) {
    LOCKSTEP_CHECK(opened.error().message.starts_with("fuzz "), "a refusal names the file");
    return 0;
  }
  const std::string& text = opened->text;
  LOCKSTEP_CHECK(lockstep::is_utf8(text), "a reader gets UTF-8");
  LOCKSTEP_CHECK(text.size() <= 3 * kBytesMax, "not more than each byte as a character");
  LOCKSTEP_CHECK(opened->foreign_lines == 0 || !was_utf8, "lines of UTF-8 are not foreign");
  LOCKSTEP_CHECK(lockstep::encoding_note(*opened).empty() == (opened->foreign_lines == 0 && !opened->was_utf16),
                 "what was converted is said");
  for (size_t at = text.find('\r'); at != std::string::npos; at = text.find('\r', at + 1)) {
    LOCKSTEP_CHECK(at + 1 < text.size() && text[at + 1] == '\n', "no carriage return ends a line alone");
  }
  return 0;
}
