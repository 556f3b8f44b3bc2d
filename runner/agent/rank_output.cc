#include "runner/agent/rank_output.h"

#include <algorithm>
#include <cctype>
#include <optional>

#include "runner/base/parse_number.h"

namespace lockstep {
namespace {

std::optional<StreamChoice::Streams> parse_number_of_streams(std::string_view text) {
  if (text.size() != 1 || text[0] < '0' || text[0] > '3') return std::nullopt;
  const int bits = text[0] - '0';
  return StreamChoice::Streams{.out = (bits & 1) != 0, .err = (bits & 2) != 0};
}

bool is_name_char(char c) { return c == '_' || std::isalnum(static_cast<unsigned char>(c)) != 0; }

}  // namespace

bool StreamChoice::has(int local_rank, bool to_stderr) const {
  const auto it = of_ranks.find(local_rank);
  const Streams& streams = it == of_ranks.end() ? others : it->second;
  return to_stderr ? streams.err : streams.out;
}

bool StreamChoice::is_none() const {
  const auto is_empty = [](const Streams& streams) { return !streams.out && !streams.err; };
  return is_empty(others) &&
         std::all_of(of_ranks.begin(), of_ranks.end(), [&](const auto& rank) { return is_empty(rank.second); });
}

Result<StreamChoice> parse_streams(std::string_view text) {
  const Error wrong =
      invalid("\"" + std::string(text) +
              "\": expected 0 (nothing), 1 (stdout), 2 (stderr) or 3 (both), or the same by local rank: "
              "0:3,1:1");
  StreamChoice choice;
  if (const auto all = parse_number_of_streams(text)) {
    choice.others = *all;
    return choice;
  }
  while (!text.empty()) {
    const std::string_view part = text.substr(0, text.find(','));
    const bool is_last = part.size() == text.size();
    text.remove_prefix(std::min(text.size(), part.size() + 1));
    const size_t colon = part.find(':');
    if (colon == std::string_view::npos || (!is_last && text.empty())) return wrong;
    const std::optional<int> rank = parse_number<int>(part.substr(0, colon));
    const auto streams = parse_number_of_streams(part.substr(colon + 1));
    if (!rank || *rank < 0 || !streams) return wrong;
    choice.of_ranks[*rank] = *streams;
  }
  if (choice.of_ranks.empty()) return wrong;
  return choice;
}

bool OutputOptions::is_shown(int local_rank, bool to_stderr) const {
  if (redirects.has(local_rank, to_stderr) && !tee.has(local_rank, to_stderr)) return false;
  return shown.empty() || std::find(shown.begin(), shown.end(), local_rank) != shown.end();
}

bool OutputOptions::goes_to_file(int local_rank, bool to_stderr) const {
  // With --log_dir alone there are files of all streams; torchrun makes empty folders.
  const bool is_log_dir_alone = redirects.is_none() && tee.is_none() && !log_dir.empty();
  return is_log_dir_alone || redirects.has(local_rank, to_stderr) || tee.has(local_rank, to_stderr);
}

bool OutputOptions::is_duplicated(int local_rank, bool to_stderr, std::string_view line) const {
  const std::vector<std::string>& filters = to_stderr ? duplicate_err : duplicate_out;
  return goes_to_file(local_rank, to_stderr) && is_shown(local_rank, to_stderr) &&
         std::any_of(filters.begin(), filters.end(),
                     [line](const std::string& filter) { return line.find(filter) != std::string_view::npos; });
}

std::string line_prefix(const std::string& prefix_template, const std::string& role, int rank, int local_rank) {
  const std::map<std::string, std::string> values{
      {"role_name", role}, {"rank", std::to_string(rank)}, {"local_rank", std::to_string(local_rank)}};
  std::string text;
  for (size_t at = 0; at < prefix_template.size();) {
    const char c = prefix_template[at];
    const bool is_last = at + 1 == prefix_template.size();
    if (c != '$' || is_last) {
      text += c;
      ++at;
    } else if (prefix_template[at + 1] == '$') {
      text += '$';
      at += 2;
    } else {
      const bool has_braces = prefix_template[at + 1] == '{';
      const size_t begin = at + (has_braces ? 2 : 1);
      size_t end = begin;
      while (end < prefix_template.size() && is_name_char(prefix_template[end])) ++end;
      const bool is_closed = !has_braces || (end < prefix_template.size() && prefix_template[end] == '}');
      const auto value = values.find(prefix_template.substr(begin, end - begin));
      const size_t next = end + (has_braces && is_closed ? 1 : 0);
      // What is no name of ours stays as it is.
      text += is_closed && value != values.end() ? value->second : prefix_template.substr(at, next - at);
      at = next;
    }
  }
  return text;
}

}  // namespace lockstep
