#include "operator/train/bookkeeping.h"

#include <algorithm>

#include "operator/api/trainjob.h"
#include "runner/base/json.h"

namespace lockstep::train {
namespace {

// Keys of JSON objects are strings; those here are numbers: node ranks, times.
template <typename Key, typename Value, typename Read>
void read_by_number(const Json& json, std::string_view name, std::map<Key, Value>& to, Read read) {
  const Json* const object = field(json, {name});
  if (object == nullptr || !object->is_object()) return;
  for (const auto& [key, value] : object->items()) {
    if (const auto number = parse_number(key)) to[static_cast<Key>(*number)] = read(value);
  }
}

void read_nodes(const Json& json, std::string_view name, std::map<std::string, api::UnixSeconds>& to) {
  const Json* const nodes = field(json, {name});
  if (nodes == nullptr || !nodes->is_object()) return;
  for (const auto& [node, time] : nodes->items()) {
    if (time.is_number_integer()) to[node] = time.get<int64_t>();
  }
}

int whole_number(const Json& value) { return value.is_number_integer() ? value.get<int>() : 0; }

// "0-1023,1030": thousands of pods in a few bytes.
std::string ranges_text(const std::set<int>& node_ranks) {
  std::string text;
  for (auto node_rank = node_ranks.begin(); node_rank != node_ranks.end();) {
    const int first = *node_rank;
    int last = first;
    while (++node_rank != node_ranks.end() && *node_rank == last + 1) last = *node_rank;
    if (!text.empty()) text += ",";
    text += std::to_string(first);
    if (last != first) text += "-" + std::to_string(last);
  }
  return text;
}

std::set<int> read_ranges(const Json& json, std::string_view name) {
  std::set<int> node_ranks;
  const std::string text = text_field(json, {name});
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find(',', at), text.size());
    const std::string_view range = std::string_view(text).substr(at, end - at);
    const size_t dash = range.find('-');
    const std::optional<int64_t> first = parse_number(range.substr(0, dash));
    const std::optional<int64_t> last = dash == range.npos ? first : parse_number(range.substr(dash + 1));
    const int64_t from = node_ranks.empty() ? 0 : *node_ranks.rbegin() + 1;  // ascending, as ranges_text writes them
    if (!first || !last || *first < from || *last > api::kNodeRankMax) return {};
    for (int64_t node_rank = *first; node_rank <= *last; ++node_rank) node_ranks.insert(static_cast<int>(node_rank));
    at = end + 1;
  }
  return node_ranks;
}

Json to_json(const Recovering& r) {
  return {{"since", r.since},
          {"scope", r.scope},
          {"reason", r.reason},
          {"message", r.message},
          {"generation", r.generation}};
}

Json counters_to_json(const Bookkeeping& book) {
  Json json = Json::object();
  for (const auto& [time, failures] : book.counted) json["counted"][std::to_string(time)] = failures;
  if (book.out_of_memory != 0) json["outOfMemory"] = book.out_of_memory;
  if (book.checkpoint_step >= 0) json["checkpointStep"] = book.checkpoint_step;
  if (book.furthest_step >= 0) json["furthestStep"] = book.furthest_step;
  for (const auto& [node_rank, times] : book.without_progress)
    json["withoutProgress"][std::to_string(node_rank)] = times;
  for (const auto& [node_rank, replacements] : book.quick_replacements) {
    json["quickReplacements"][std::to_string(node_rank)] = {{"times", replacements.times}, {"last", replacements.last}};
  }
  for (const auto& [node, since] : book.avoided) json["avoided"][node] = since;
  for (const auto& [node, last] : book.refusals) json["refusals"][node] = last;
  if (!book.moved.empty()) json["moved"] = ranges_text(book.moved);
  if (!book.committed_spec.empty()) json["committedSpec"] = book.committed_spec;
  return json;
}

void read_counters(const Json& json, Bookkeeping& book) {
  read_by_number(json, "counted", book.counted, whole_number);
  book.out_of_memory = static_cast<int>(number_field(json, {"outOfMemory"}).value_or(0));
  book.checkpoint_step = number_field(json, {"checkpointStep"}).value_or(-1);
  book.furthest_step = number_field(json, {"furthestStep"}).value_or(-1);
  read_by_number(json, "withoutProgress", book.without_progress, whole_number);
  read_by_number(json, "quickReplacements", book.quick_replacements, [](const Json& entry) {
    return QuickReplacements{static_cast<int>(number_field(entry, {"times"}).value_or(0)),
                             number_field(entry, {"last"}).value_or(0)};
  });
  read_nodes(json, "avoided", book.avoided);
  read_nodes(json, "refusals", book.refusals);
  book.moved = read_ranges(json, "moved");
  book.committed_spec = text_field(json, {"committedSpec"});
}

}  // namespace

Json to_json(const Bookkeeping& book) {
  Json json = counters_to_json(book);
  if (book.checked_generation != 0) json["checkedGeneration"] = book.checked_generation;
  if (!book.created.empty()) json["created"] = ranges_text(book.created);
  if (!book.done.empty()) json["done"] = ranges_text(book.done);
  if (book.first_done_at != 0) json["firstDoneAt"] = book.first_done_at;
  if (book.pods_from_generation != 0) json["podsFromGeneration"] = book.pods_from_generation;
  if (book.pod_group != 0) json["podGroup"] = book.pod_group;
  if (book.enough_were_ready) json["enoughWereReady"] = true;
  if (book.placement != Placement{}) {
    json["placement"] = {{"shortSince", book.placement.short_since},
                         {"timesGivenBack", book.placement.times_given_back},
                         {"againAt", book.placement.again_at}};
  }
  if (book.room_made_at != 0) json["roomMadeAt"] = book.room_made_at;
  if (book.suspending) json["suspending"] = true;
  if (book.spec_hold) {
    json["held"] = {{"generation", book.spec_hold->generation},
                    {"reason", book.spec_hold->reason},
                    {"message", book.spec_hold->message}};
  }
  if (book.waiting_since != 0) json["waitingSince"] = book.waiting_since;
  if (book.were_ready) json["wereReady"] = true;
  if (book.has_stepped) json["hasStepped"] = true;
  if (book.recovering) json["recovering"] = to_json(*book.recovering);
  if (!book.origin.empty()) json["origin"] = book.origin;
  if (book.process_restarts_before != 0) json["processRestartsBefore"] = book.process_restarts_before;
  if (book.process_restarts_now != 0) json["processRestartsNow"] = book.process_restarts_now;
  if (!book.process_restarts_pod.empty()) json["processRestartsPod"] = book.process_restarts_pod;
  return json;
}

Bookkeeping bookkeeping_from_json(const Json& json) {
  Bookkeeping book;
  read_counters(json, book);
  book.checked_generation = number_field(json, {"checkedGeneration"}).value_or(0);
  book.created = read_ranges(json, "created");
  book.done = read_ranges(json, "done");
  book.first_done_at = number_field(json, {"firstDoneAt"}).value_or(0);
  book.pods_from_generation = number_field(json, {"podsFromGeneration"}).value_or(0);
  book.pod_group = static_cast<int>(number_field(json, {"podGroup"}).value_or(0));
  book.enough_were_ready = bool_field(json, {"enoughWereReady"});
  book.placement = {
      .short_since = number_field(json, {"placement", "shortSince"}).value_or(0),
      .times_given_back = static_cast<int>(number_field(json, {"placement", "timesGivenBack"}).value_or(0)),
      .again_at = number_field(json, {"placement", "againAt"}).value_or(0)};
  book.room_made_at = number_field(json, {"roomMadeAt"}).value_or(0);
  book.suspending = bool_field(json, {"suspending"});
  if (const std::optional<int64_t> generation = number_field(json, {"held", "generation"})) {
    book.spec_hold = Hold{*generation, text_field(json, {"held", "reason"}), text_field(json, {"held", "message"})};
  }
  book.waiting_since = number_field(json, {"waitingSince"}).value_or(0);
  book.were_ready = bool_field(json, {"wereReady"});
  book.has_stepped = bool_field(json, {"hasStepped"});
  if (const Json* recovering = field(json, {"recovering"}); recovering != nullptr && recovering->is_object()) {
    Recovering r;
    r.since = number_field(*recovering, {"since"}).value_or(0);
    r.scope = text_field(*recovering, {"scope"});
    r.reason = text_field(*recovering, {"reason"});
    r.message = text_field(*recovering, {"message"});
    if (const Json* g = field(*recovering, {"generation"}); g != nullptr && g->is_number_unsigned()) {
      r.generation = g->get<uint64_t>();
    }
    book.recovering = std::move(r);
  }
  book.origin = text_field(json, {"origin"});
  book.process_restarts_before = number_field(json, {"processRestartsBefore"}).value_or(0);
  book.process_restarts_now = number_field(json, {"processRestartsNow"}).value_or(0);
  book.process_restarts_pod = text_field(json, {"processRestartsPod"});
  return book;
}

}  // namespace lockstep::train
