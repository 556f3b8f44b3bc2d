#include "operator/control/event_aggregator.h"

#include <algorithm>
#include <cctype>
#include <utility>

#include "operator/kube/resource.h"
#include "runner/base/check.h"
#include "runner/base/sha256.h"
#include "runner/base/utf8.h"

namespace lockstep::control {

namespace {

constexpr size_t kNameMax = 253;  // of an object, a DNS subdomain
constexpr size_t kHashDigits = 16;

const char* to_string(EventText::Type type) { return type == EventText::Type::kNormal ? "Normal" : "Warning"; }

// "<object>.<hash>". The object's name is cut if the result would be too long, so that it ends with a letter or digit.
std::string event_name(const std::string& object, const std::string& hash) {
  std::string prefix = object.substr(0, kNameMax - kHashDigits - 1);
  while (!prefix.empty() && std::isalnum(static_cast<unsigned char>(prefix.back())) == 0) prefix.pop_back();
  return prefix.append(".").append(hash, 0, kHashDigits);
}

std::string object_id(const ObjectReference& about) {
  return dump_line(Json{about.api_version, about.kind, about.key.ns, about.key.name, about.uid});
}

}  // namespace

std::string cut_text(const std::string& text, size_t bytes_max) {
  const std::string whole = valid_utf8(text);
  if (whole.size() <= bytes_max) return whole;
  static constexpr std::string_view kMore = "…";
  if (bytes_max < kMore.size()) return {};
  return cut_utf8(whole, bytes_max - kMore.size()).append(kMore);
}

Json event_object(const EventSeries& series, const EventRecorder::Options& options) {
  const ObjectReference& about = series.about;
  Json involved = {{"apiVersion", about.api_version}, {"kind", about.kind}, {"name", about.key.name}};
  if (!about.key.ns.empty()) involved["namespace"] = about.key.ns;
  if (!about.uid.empty()) involved["uid"] = about.uid;
  if (!about.resource_version.empty()) involved["resourceVersion"] = about.resource_version;
  Json event = {
      {"apiVersion", kube::kEvents.api_version()},
      {"kind", kube::kEvents.kind},
      // Events about objects of the whole cluster live in "default", as the API wants it.
      {"metadata", {{"namespace", about.key.ns.empty() ? "default" : about.key.ns}, {"name", series.name}}},
      {"involvedObject", std::move(involved)},
      {"type", to_string(series.text.type)},
      {"reason", series.text.reason},
      {"message", series.text.message},
      {"source", {{"component", options.component}}},
      {"reportingComponent", options.component},
      {"reportingInstance", options.instance},
      {"firstTimestamp", api::format_time(series.first)},
      {"lastTimestamp", api::format_time(series.last)},
      {"count", series.count},
  };
  if (!series.text.action.empty()) event["action"] = series.text.action;
  return event;
}

Json event_patch(const EventSeries& series) {
  return {{"count", series.count}, {"lastTimestamp", api::format_time(series.last)}};
}

EventAggregator::EventAggregator(std::string component) : component_(std::move(component)) {}

std::string EventAggregator::series_id(const ObjectReference& about, const EventText& text) const {
  return dump_line(Json{component_, about.api_version, about.kind, about.key.ns, about.key.name, about.uid,
                        to_string(text.type), text.reason, text.message, text.action});
}

void EventAggregator::record(const ObjectReference& about, EventText text, Clock::time_point now,
                             api::UnixSeconds wall) {
  text.message = cut_text(text.message, kEventMessageMax);
  text.reason = cut_text(text.reason, kEventReasonMax);
  text.action = cut_text(text.action, kEventReasonMax);
  const std::string id = series_id(about, text);

  auto found = series_.find(id);
  // After kEventWindow without a repetition a new series begins, unless the old one still waits to be written.
  const bool over = found != series_.end() && now - found->second.last_seen > kEventWindow && !found->second.due &&
                    !found->second.in_flight;
  if (over) {
    series_.erase(found);
    found = series_.end();
  }
  if (found == series_.end()) {
    if (!may_begin_series(about, now)) return;
    make_room();
    const std::string began_in = std::to_string(wall / std::chrono::seconds(kEventWindow).count());
    Series series;
    series.latest = {about, std::move(text), event_name(about.key.name, sha256_hex(id + began_in)), 0, wall, wall};
    found = series_.emplace(id, std::move(series)).first;
    wait(found, now);
  } else if (!found->second.due && !found->second.in_flight) {
    wait(found, now + kEventUpdateInterval);
  }
  Series& series = found->second;
  ++series.latest.count;
  series.latest.last = std::max(series.latest.last, wall);
  series.last_seen = now;
  if (queue_.size() > kEventsWaitingMax) {
    const auto oldest =
        std::min_element(queue_.begin(), queue_.end(), [](const Turn& a, const Turn& b) { return a.order < b.order; });
    drop(series_.find(oldest->id));
  }
}

std::optional<EventWrite> EventAggregator::next(Clock::time_point now, bool all) {
  if (queue_.empty() || (!all && queue_.begin()->due > now)) return std::nullopt;
  const std::string id = queue_.begin()->id;
  Series& series = series_.find(id)->second;
  stop_waiting(series, id);
  series.in_flight = true;
  return EventWrite{series.stored ? EventWrite::Kind::kUpdate : EventWrite::Kind::kCreate, id, series.latest};
}

std::optional<Clock::time_point> EventAggregator::due_at() const {
  if (queue_.empty()) return std::nullopt;
  return queue_.begin()->due;
}

void EventAggregator::on_written(const EventWrite& write, Clock::time_point now) {
  const auto found = series_.find(write.id);
  found->second.stored = true;
  found->second.count_stored = write.series.count;
  answered(write, found, now);
}

void EventAggregator::on_exists(const EventWrite& write, int64_t count, Clock::time_point now) {
  const auto found = series_.find(write.id);
  Series& series = found->second;
  series.stored = true;
  series.count_stored = count;
  series.latest.count += count;
  answered(write, found, now);
  // The create was refused because the Event exists: an update adds its count now.
  stop_waiting(series, write.id);
  wait(found, now);
}

void EventAggregator::on_gone(const EventWrite& write, Clock::time_point now) {
  const auto found = series_.find(write.id);
  Series& series = found->second;
  // The new Event counts only what the deleted one did not have yet; the rest would be counted twice.
  series.latest.count -= series.count_stored;
  series.latest.first = series.latest.last;
  series.stored = false;
  series.count_stored = 0;
  answered(write, found, now);
  stop_waiting(series, write.id);
  wait(found, now);
}

void EventAggregator::on_failed(const EventWrite& write, std::optional<Clock::time_point> again) {
  const auto found = series_.find(write.id);
  Series& series = found->second;
  series.in_flight = false;
  if (again && ++series.tries < kEventTriesMax) {
    wait(found, *again);
  } else {
    drop(found);
  }
}

void EventAggregator::answered(const EventWrite& write, SeriesMap::iterator series, Clock::time_point now) {
  LOCKSTEP_CHECK(series != series_.end() && series->second.in_flight, "an answer follows a write");
  series->second.in_flight = false;
  series->second.tries = 0;
  // It happened again while the write was under way.
  if (series->second.latest.count > write.series.count) wait(series, now + kEventUpdateInterval);
}

void EventAggregator::wait(SeriesMap::iterator series, Clock::time_point due) {
  series->second.due = due;
  series->second.order = next_order_++;
  queue_.insert({due, series->second.order, series->first});
}

void EventAggregator::stop_waiting(Series& series, const std::string& id) {
  if (!series.due) return;
  queue_.erase({*series.due, series.order, id});
  series.due.reset();
}

void EventAggregator::drop(SeriesMap::iterator series) {
  stop_waiting(series->second, series->first);
  series_.erase(series);
}

bool EventAggregator::may_begin_series(const ObjectReference& about, Clock::time_point now) {
  const auto [at, is_new] = budgets_.try_emplace(object_id(about));
  Budget& budget = at->second;
  budget.last_used = std::max(budget.last_used, now);
  const bool may_begin = budget.limit.available(now) > 0;
  if (may_begin) budget.limit.reserve(now);
  if (is_new && budgets_.size() > kEventSeriesMax) {
    budgets_.erase(std::min_element(budgets_.begin(), budgets_.end(), [](const auto& a, const auto& b) {
      return a.second.last_used < b.second.last_used;
    }));
  }
  return may_begin;
}

// Drops the series whose last occurrence is oldest. If it occurs again, its Event is found by its name.
void EventAggregator::make_room() {
  if (series_.size() < kEventSeriesMax) return;
  auto quietest = series_.end();
  for (auto series = series_.begin(); series != series_.end(); ++series) {
    if (series->second.due || series->second.in_flight) continue;
    if (quietest == series_.end() || series->second.last_seen < quietest->second.last_seen) quietest = series;
  }
  if (quietest != series_.end()) series_.erase(quietest);
}

}  // namespace lockstep::control
