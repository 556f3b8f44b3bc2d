#include "operator/api/label_text.h"

#include <algorithm>
#include <cctype>

#include "runner/base/json.h"

namespace lockstep::api {
namespace {

constexpr size_t kLabelMax = 63;
constexpr size_t kSubdomainMax = 253;

bool is_lower_or_digit(char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9'); }
bool is_letter_or_digit(char c) { return is_lower_or_digit(c) || (c >= 'A' && c <= 'Z'); }

// Not empty; a letter or digit at both ends.
bool is_name(std::string_view text) {
  return !text.empty() && text.size() <= kLabelMax && is_letter_or_digit(text.front()) &&
         is_letter_or_digit(text.back()) && std::all_of(text.begin(), text.end(), [](char c) {
           return is_letter_or_digit(c) || c == '-' || c == '_' || c == '.';
         });
}

bool is_dns_label(std::string_view text, size_t length_max) {
  return !text.empty() && text.size() <= length_max && is_lower_or_digit(text.front()) &&
         is_lower_or_digit(text.back()) &&
         std::all_of(text.begin(), text.end(), [](char c) { return is_lower_or_digit(c) || c == '-'; });
}

bool is_dns_subdomain(std::string_view text) {
  if (text.size() > kSubdomainMax) return false;
  for (size_t at = 0;;) {
    const size_t dot = std::min(text.find('.', at), text.size());
    if (!is_dns_label(text.substr(at, dot - at), kSubdomainMax)) return false;
    if (dot == text.size()) return true;
    at = dot + 1;
  }
}

}  // namespace

std::string label_value_expected(std::string_view text) {
  if (text.empty() || is_name(text)) return {};
  return "at most 63 letters, digits, '-', '_' and '.', with a letter or digit at both ends";
}

std::string qualified_name_expected(std::string_view text) {
  const size_t slash = text.find('/');
  const bool has_domain = slash != std::string_view::npos;
  const std::string_view name = has_domain ? text.substr(slash + 1) : text;
  if (is_name(name) && (!has_domain || is_dns_subdomain(text.substr(0, slash)))) return {};
  return "at most 63 letters, digits, '-', '_' and '.', with a letter or digit at both ends, or the same after a "
         "domain "
         "and a slash (example.com/name)";
}

std::string dns_label_expected(std::string_view text) {
  if (is_dns_label(text, kLabelMax)) return {};
  return "at most 63 lower-case letters, digits and dashes, with a letter or digit at both ends";
}

std::string dns_subdomain_expected(std::string_view text) {
  if (is_dns_subdomain(text)) return {};
  return "at most 253 lower-case letters, digits, dashes and dots, with a letter or digit at both ends";
}

std::string label_fault(const std::string& name, const std::string& value) {
  if (const std::string expected = qualified_name_expected(name); !expected.empty()) {
    return "a label's name is " + expected;
  }
  const std::string expected = label_value_expected(value);
  if (expected.empty()) return {};
  return "is " + dump_line(Json(value)) + ", expected " + expected + "; an annotation takes any text";
}

std::string annotation_fault(const std::string& name) {
  std::string lower = name;  // the API server takes capitals in the domain, too
  for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  const std::string expected = qualified_name_expected(lower);
  return expected.empty() ? "" : "an annotation's name is " + expected;
}

}  // namespace lockstep::api
