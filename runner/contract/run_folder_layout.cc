#include "runner/contract/run_folder_layout.h"

#include <algorithm>

#include "runner/contract/checkpoint_layout.h"

namespace lockstep {
namespace {

bool is_plain(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '_' || c == '-';
}

}  // namespace

const char* output_content_type(std::string_view name) {
  if (name.ends_with(".png")) return "image/png";
  if (name.ends_with(".svg")) return "image/svg+xml";
  // Markdown too, because browsers show text/plain but offer to save text/markdown.
  if (name.ends_with(".txt") || name.ends_with(".md")) return "text/plain; charset=utf-8";
  return nullptr;
}

bool is_output_name(std::string_view name) {
  return !name.empty() && name.size() <= kOutputNameMax && name.front() != '.' &&
         std::all_of(name.begin(), name.end(), is_plain) && output_content_type(name) != nullptr;
}

std::string output_path(const OutputFile& output) {
  return std::string(kOutputsFolder) + "/" + step_folder_name(output.step) + "/" + output.name;
}

std::optional<OutputFile> parse_output_path(std::string_view path) {
  const std::string folder = std::string(kOutputsFolder) + "/";
  if (!path.starts_with(folder)) return std::nullopt;
  path.remove_prefix(folder.size());
  const size_t slash = path.find('/');
  if (slash == std::string_view::npos) return std::nullopt;
  const std::optional<int64_t> step = parse_step_folder_name(path.substr(0, slash));
  const std::string_view name = path.substr(slash + 1);
  if (!step || !is_output_name(name)) return std::nullopt;
  return OutputFile{.step = *step, .name = std::string(name)};
}

}  // namespace lockstep
