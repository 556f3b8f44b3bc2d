#include "runner/base/json_text.h"

#include <algorithm>

namespace lockstep {
namespace {

constexpr std::string_view kSpace = " \t\r\n";
constexpr size_t kNowhere = std::string_view::npos;

// Behind the string that begins at `at`.
size_t end_of_string(std::string_view text, size_t at) {
  for (++at; at < text.size(); ++at) {
    if (text[at] == '\\') {
      ++at;
    } else if (text[at] == '"') {
      return at + 1;
    }
  }
  return kNowhere;
}

// Behind the object or list that begins at `at`. Which bracket closes which is left to the parser.
size_t end_of_nested(std::string_view text, size_t at) {
  size_t depth = 0;
  while (at < text.size()) {
    const char c = text[at];
    if (c == '"') {
      at = end_of_string(text, at);
      continue;
    }
    ++at;
    if (c == '{' || c == '[') ++depth;
    if ((c == '}' || c == ']') && --depth == 0) return at;
  }
  return kNowhere;
}

size_t end_of_value(std::string_view text, size_t at) {
  if (at >= text.size()) return kNowhere;
  if (text[at] == '"') return end_of_string(text, at);
  if (text[at] == '{' || text[at] == '[') return end_of_nested(text, at);
  return std::min(text.find_first_of(" \t\r\n,]}", at), text.size());
}

size_t skip_space(std::string_view text, size_t at) {
  return std::min(text.find_first_not_of(kSpace, at), text.size());
}

bool is_at(std::string_view text, size_t at, char c) { return at < text.size() && text[at] == c; }

}  // namespace

JsonSize size_of_json(std::string_view text) {
  JsonSize size;
  size_t depth = 0;
  for (size_t at = 0; at < text.size(); ++at) {
    switch (text[at]) {
      case '"':
        at = std::min(end_of_string(text, at), text.size()) - 1;
        break;
      case '{':
      case '[':
        size.depth = std::max(size.depth, ++depth);
        ++size.values;
        break;
      case '}':
      case ']':
        if (depth > 0) --depth;
        break;
      case ',':
        ++size.values;
        break;
      default:
        break;
    }
  }
  return size;
}

std::optional<std::vector<JsonMember>> members_of_json(std::string_view text) {
  size_t at = skip_space(text, 0);
  const bool is_object = is_at(text, at, '{');
  if (!is_object && !is_at(text, at, '[')) return std::nullopt;
  const char close = is_object ? '}' : ']';
  std::vector<JsonMember> members;
  at = skip_space(text, at + 1);
  bool is_closed = is_at(text, at, close);
  while (!is_closed) {
    JsonMember member;
    if (is_object) {
      const size_t end = is_at(text, at, '"') ? end_of_string(text, at) : kNowhere;
      if (end == kNowhere) return std::nullopt;
      member.name = text.substr(at, end - at);
      at = skip_space(text, end);
      if (!is_at(text, at, ':')) return std::nullopt;
      at = skip_space(text, at + 1);
    }
    const size_t end = end_of_value(text, at);
    if (end == kNowhere || end == at) return std::nullopt;
    member.text = text.substr(at, end - at);
    members.push_back(member);
    at = skip_space(text, end);
    is_closed = is_at(text, at, close);
    if (is_closed) break;
    if (!is_at(text, at, ',')) return std::nullopt;
    at = skip_space(text, at + 1);
  }
  if (skip_space(text, at + 1) != text.size()) return std::nullopt;
  return members;
}

}  // namespace lockstep
