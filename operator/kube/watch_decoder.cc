#include "operator/kube/watch_decoder.h"

#include <optional>
#include <string>
#include <vector>

#include "operator/kube/api_error.h"
#include "runner/base/json_text.h"

namespace lockstep::kube {
namespace {

Error corrupt(std::string_view line, const std::string& why) {
  constexpr size_t kShownMax = 200;
  std::string message = "a line of a watch " + why + ": ";
  message.append(dump_line(Json(line.substr(0, kShownMax))));
  if (line.size() > kShownMax) message.append(" … (").append(std::to_string(line.size())).append(" bytes)");
  return Error{ErrorCode::kCorrupt, message};
}

std::optional<WatchEvent::Type> type_of(const std::string& word) {
  if (word == "ADDED") return WatchEvent::Type::kAdded;
  if (word == "MODIFIED") return WatchEvent::Type::kModified;
  if (word == "DELETED") return WatchEvent::Type::kDeleted;
  if (word == "BOOKMARK") return WatchEvent::Type::kBookmark;
  return std::nullopt;
}

}  // namespace

Result<WatchEvent> decode_watch_line(std::string_view line, size_t field_bytes_max) {
  const auto members = members_of_json(line);
  if (!members && !Json::accept(line)) return corrupt(line, "is not JSON");
  Json type;
  std::string_view text;
  for (const JsonMember& member : members.value_or(std::vector<JsonMember>())) {
    if (member.name == "\"type\"" && member.text.front() == '"') {
      Result<Json> word = parse_json(member.text, "the type");
      if (!word.ok()) return corrupt(line, "is not JSON");
      type = *std::move(word);
    }
    if (member.name == "\"object\"") text = member.text;
  }
  if (!type.is_string() || text.empty() || text.front() != '{') {
    return corrupt(line, "is not an event with type and object");
  }
  Result<Json> object = read_object(text, field_bytes_max);
  if (!object.ok()) return corrupt(line, "is not JSON");
  const std::string word = type.get<std::string>();
  if (word == "ERROR") return error_of_status(*object, 0).with_context("the API server ended the watch");
  const std::optional<WatchEvent::Type> known = type_of(word);
  if (!known) return corrupt(line, "has a type that is unknown");
  const auto metadata = object->find("metadata");
  if (metadata == object->end() || !metadata->is_object()) return corrupt(line, "holds an object without metadata");
  return WatchEvent{*known, std::move(*object)};
}

Status WatchDecoder::decode(std::string_view bytes, const std::function<void(WatchEvent)>& on_event) {
  lines_.append(bytes);
  while (true) {
    TRY_ASSIGN(std::optional<std::string> line, lines_.next_line());
    if (!line) return {};
    if (line->find_first_not_of(" \t\r") == std::string::npos) continue;
    TRY_ASSIGN(WatchEvent event, decode_watch_line(*line, field_bytes_max_));
    on_event(std::move(event));
  }
}

}  // namespace lockstep::kube
