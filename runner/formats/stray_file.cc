#include <algorithm>
#include <string>
#include <string_view>

#include "runner/formats/open_text.h"

namespace lockstep {
namespace {

constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

bool starts_with_any_case(std::string_view text, std::string_view lower) {
  return text.size() >= lower.size() && std::equal(lower.begin(), lower.end(), text.begin(), [](char a, char b) {
           return a == (b >= 'A' && b <= 'Z' ? static_cast<char>(b - 'A' + 'a') : b);
         });
}

}  // namespace

std::string stray_file(std::string_view head) {
  if (head.starts_with(kByteOrderMark)) head.remove_prefix(kByteOrderMark.size());
  if (head.starts_with("version https://git-lfs.github.com/spec/")) {
    return "is a Git LFS pointer, not the file itself: fetch it with `git lfs pull`";
  }
  head.remove_prefix(std::min(head.find_first_not_of(" \t\r\n"), head.size()));
  if (starts_with_any_case(head, "<!doctype html") || starts_with_any_case(head, "<html")) {
    return "is a web page (HTML), not data: the download got an error page or a login page; open the file and see, "
           "then "
           "download it again";
  }
  if (head.starts_with("<?xml")) {
    return "is an XML document, not data: a server answered with it in place of the file; open the file and see, then "
           "download it again";
  }
  return {};
}

}  // namespace lockstep
