#include "operator/kube/watch_decoder.h"

#include <optional>
#include <string>

#include "operator/kube/api_error.h"

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

Result<WatchEvent> decode_watch_line(std::string_view line) {
  Result<Json> parsed = parse_json(line, "a line of a watch");
  if (!parsed.ok()) return corrupt(line, "is not JSON");
  Json& event = *parsed;
  const auto type = event.is_object() ? event.find("type") : event.end();
  const auto object = event.is_object() ? event.find("object") : event.end();
  if (type == event.end() || !type->is_string() || object == event.end() || !object->is_object()) {
    return corrupt(line, "is not an event with type and object");
  }
  const std::string word = type->get<std::string>();
  if (word == "ERROR") return error_of_status(*object, 0).with_context("the API server ended the watch");
  const std::optional<WatchEvent::Type> known = type_of(word);
  if (!known) return corrupt(line, "has a type that is unknown");
  const auto metadata = object->find("metadata");
  if (metadata == object->end() || !metadata->is_object()) return corrupt(line, "holds an object without metadata");
  return WatchEvent{*known, std::move(*object)};
}

Status WatchDecoder::feed(std::string_view bytes, const std::function<void(WatchEvent)>& on_event) {
  lines_.append(bytes);
  while (true) {
    TRY_ASSIGN(std::optional<std::string> line, lines_.next_line());
    if (!line) return {};
    if (line->find_first_not_of(" \t\r") == std::string::npos) continue;
    TRY_ASSIGN(WatchEvent event, decode_watch_line(*line));
    on_event(std::move(event));
  }
}

}  // namespace lockstep::kube
