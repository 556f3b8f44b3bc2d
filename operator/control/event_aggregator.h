// EventAggregator: which Events are written, when, and what they say. Pure.
//
// Equal occurrences (object, type, reason, message, action) that follow each other within kEventWindow are one series =
// one Event whose count rises. Its name is `<object>.<hash>`, the hash of all that and of the ten minutes in which it
// began: an operator that was started again finds its predecessor's Event and raises its count instead of making a
// second one. The first occurrence is written at once, the count at most every kEventUpdateInterval. A new series takes
// a place of its object's budget (client-go's figures); when none is left it is dropped.
// Threads: none.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>

#include "operator/control/clock.h"
#include "operator/control/event_recorder.h"
#include "operator/kube/rate_limit.h"

namespace lockstep::control {

inline constexpr size_t kEventMessageMax = 1024;  // bytes, the API's limit for `note`
inline constexpr size_t kEventReasonMax = 128;    // likewise; of `action` too
inline constexpr std::chrono::minutes kEventWindow{10};
inline constexpr int kEventBurst = 25;
inline constexpr std::chrono::minutes kEventRefill{5};
inline constexpr std::chrono::seconds kEventUpdateInterval{10};
inline constexpr size_t kEventsWaitingMax = 1000;
inline constexpr size_t kEventSeriesMax = 4096;  // kept in memory; the same limit for the budgets of objects
inline constexpr int kEventTriesMax = 12;        // as client-go's

// At most `bytes_max` bytes, cut between characters and ended by "…" when something is missing. Bytes that are not
// UTF-8 become U+FFFD first: messages of containers reach Events.
std::string cut_text(const std::string& text, size_t bytes_max);

struct EventSeries {
  ObjectReference about;
  EventText text;
  std::string name;  // of the Event
  int64_t count = 0;
  api::UnixSeconds first = 0;
  api::UnixSeconds last = 0;
};

struct EventWrite {
  enum class Kind { kCreate, kUpdate };
  Kind kind = Kind::kCreate;
  std::string id;  // of the series
  EventSeries series;
};

// core/v1 Event.
Json event_object(const EventSeries& series, const EventRecorder::Options& options);
// Merge patch of what an update changes.
Json event_patch(const EventSeries& series);

class EventAggregator {
 public:
  // `component` is a part of the names.
  explicit EventAggregator(std::string component);

  void record(const ObjectReference& about, EventText text, Clock::time_point now, api::UnixSeconds wall);

  // The next write that is due; the caller answers it with exactly one of the four calls below. `all`: also those that
  // are not due yet.
  std::optional<EventWrite> next(Clock::time_point now, bool all = false);
  // When there is something to write; nothing: not before the next `record`.
  [[nodiscard]] std::optional<Clock::time_point> due_at() const;

  void on_written(const EventWrite& write, Clock::time_point now);
  // The create was refused, because an Event of this name exists, with this count: this operator wrote it before it was
  // restarted.
  void on_exists(const EventWrite& write, int64_t count, Clock::time_point now);
  // The Event that was to be updated is gone (its time to live is over): it is created again.
  void on_gone(const EventWrite& write, Clock::time_point now);
  // `again`: when to try again; nullopt: never.
  void on_failed(const EventWrite& write, std::optional<Clock::time_point> again);

  [[nodiscard]] size_t waiting() const { return queue_.size(); }

 private:
  struct Series {
    EventSeries latest;        // what the Event should contain
    bool stored = false;       // the Event exists on the API server
    int64_t count_stored = 0;  // its count there
    int tries = 0;             // failures in a row
    bool in_flight = false;
    std::optional<Clock::time_point> due;  // set: it waits in queue_
    uint64_t order = 0;
    Clock::time_point last_seen;
  };
  struct Turn {
    Clock::time_point due;
    uint64_t order = 0;
    std::string id;
    auto operator<=>(const Turn&) const = default;  // NOLINT(modernize-use-nullptr): clang-tidy's own 0
  };
  using SeriesMap = std::map<std::string, Series>;

  // How many series an object may begin.
  struct Budget {
    kube::RateLimit limit{1.0 / std::chrono::duration<double>(kEventRefill).count(), kEventBurst};
    Clock::time_point last_used;
  };

  [[nodiscard]] std::string series_id(const ObjectReference& about, const EventText& text) const;
  void wait(SeriesMap::iterator series, Clock::time_point due);
  void stop_waiting(Series& series, const std::string& id);
  void drop(SeriesMap::iterator series);
  void answered(const EventWrite& write, SeriesMap::iterator series, Clock::time_point now);
  bool may_begin_series(const ObjectReference& about, Clock::time_point now);
  void make_room();

  std::string component_;
  SeriesMap series_;
  std::map<std::string, Budget> budgets_;  // by object
  std::set<Turn> queue_;
  uint64_t next_order_ = 0;
};

}  // namespace lockstep::control
