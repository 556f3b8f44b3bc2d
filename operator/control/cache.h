// Cache: the read model of one resource, filled by an informer and read by reconcilers.
//
// It keeps a view of each object: what `read` makes of it, once, when the object arrives. A reconciler puts the answers
// to its writes into the cache (`assume`), so that it reads its own writes before the watch reports them:
//   - Readers see an assumed object until the watch has reached its resourceVersion. If the watch is already past that
//     version, the object is ignored: a late answer neither sets the cache back nor revives a deleted object.
//   - An assumed deletion hides the object with that UID until the watch confirms it: the object is gone, or it has a
//     deletionTimestamp and then is visible again. Another object of the same name stays visible.
// Versions are compared as numbers (resource_version.h), so a reader never sees an older state of an object after a
// newer one. Two kinds of assumption have no version to compare and end after kAssumptionLife at the latest: a deletion
// (no answer has its version), and an object with an opaque version (which the watch's next event on it ends, too).
// Threads: safe from all threads; views are immutable once in the cache. `read` and `index` run without a lock.
#pragma once

#include <algorithm>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "operator/api/object_meta.h"
#include "operator/control/clock.h"
#include "operator/control/resource_version.h"
#include "runner/base/json.h"
#include "runner/base/mutex.h"

namespace lockstep::control {

template <typename View>
using ViewPtr = std::shared_ptr<const View>;
using ObjectPtr = ViewPtr<Json>;

// Longer than the lag of a working watch. After a broken watch the informer lists again, and the list ends the
// assumptions that it contradicts.
inline constexpr std::chrono::seconds kAssumptionLife{30};

template <typename View>
class Cache {
 public:
  // Makes the view of an object. Absent, where the view is the object itself: all of it is kept.
  using Read = std::function<View(Json)>;
  // The values under which an object can be found with `find` ("ns/job" of a pod's owner). Empty: none.
  using Index = std::function<std::vector<std::string>(const View&)>;

  // An object's state at one resourceVersion.
  struct ObjectState {
    api::ObjectKey key;
    std::string uid;
    std::string version;
    std::optional<uint64_t> number;  // of the version; nothing: opaque
    bool deleting = false;
    ViewPtr<View> view;
    std::vector<std::string> index_values;
  };
  // What a list has brought so far.
  using Listing = std::map<api::ObjectKey, ObjectState>;

  explicit Cache(Read read = {}, Index index = {}, Now now = Clock::now)
      : read_(std::move(read)), index_(std::move(index)), now_(std::move(now)), sweep_at_(now_() + kAssumptionLife) {}
  Cache(const Cache&) = delete;
  Cache& operator=(const Cache&) = delete;

  [[nodiscard]] ViewPtr<View> get(const api::ObjectKey& key) const;                     // nullptr when it is not there
  [[nodiscard]] std::vector<ViewPtr<View>> list() const;                                // ordered by key
  [[nodiscard]] std::vector<ViewPtr<View>> find(const std::string& index_value) const;  // ordered by key
  [[nodiscard]] size_t size() const { return list().size(); }
  // Has a whole list arrived?
  [[nodiscard]] bool synced() const;

  // For reconcilers: the object as an answer of the API server has it, or a deletion that the API server has accepted.
  void assume(Json object);
  void assume_deleted(const api::ObjectKey& key, const std::string& uid);

  // For the informer. `before` and `after` are the states from the watch and lists (nullptr: no object), without
  // assumptions: an assumed object is reported only when the watch reports it. If the two pointers are equal, nothing
  // changed: the cache had this state or a newer one.
  struct Change {
    api::ObjectKey key;
    ViewPtr<View> before;
    ViewPtr<View> after;
    bool was_assumed = false;  // readers have seen `after`, or something newer of this object
    // The one exception: `before` was only assumed, and is missing in a list. It is reported as gone, since no event
    // will come.
    bool was_only_assumed = false;
  };
  void add(Json object, Listing& listing) const;
  // A whole list; objects that are missing in it are gone. Returns only what changed. The list replaces even newer
  // states (the API server may have been restored from a backup). An empty version is opaque.
  std::vector<Change> replace(Listing listed, const std::string& list_version);
  Change put(Json object);
  Change erase(const Json& object);
  // The watch has come this far (a bookmark).
  void advance(const std::string& resource_version);

 private:
  struct AssumedDeletion {
    std::string uid;
    Clock::time_point until;
  };

  struct Entry {
    std::optional<ObjectState> seen;  // in the watch or a list
    std::optional<ObjectState> assumed;
    Clock::time_point assumed_until;  // max() when its version can be compared with the watch's
    std::optional<AssumedDeletion> deletion;

    [[nodiscard]] bool empty() const { return !seen && !assumed && !deletion; }
  };

  ObjectState state_of(Json object) const {
    ObjectState state{.key = api::key_of(object),
                      .uid = text_field(object, {"metadata", "uid"}),
                      .version = text_field(object, {"metadata", "resourceVersion"}),
                      .number = {},
                      .deleting = !text_field(object, {"metadata", "deletionTimestamp"}).empty(),
                      .view = {},
                      .index_values = {}};
    state.number = version_number(state.version);
    if constexpr (std::is_same_v<View, Json>) {
      state.view = std::make_shared<const Json>(read_ ? read_(std::move(object)) : std::move(object));
    } else {
      state.view = std::make_shared<const View>(read_(std::move(object)));
    }
    if (index_) state.index_values = index_(*state.view);
    return state;
  }

  void add_to_index(const ObjectState& state) REQUIRES(mutex_) {
    for (const std::string& value : state.index_values) ++by_value_[value][state.key];
  }

  void remove_from_index(const ObjectState& state) REQUIRES(mutex_) {
    for (const std::string& value : state.index_values) {
      const auto keys = by_value_.find(value);
      const auto key = keys->second.find(state.key);
      if (--key->second == 0) keys->second.erase(key);
      if (keys->second.empty()) by_value_.erase(keys);
    }
  }

  void set(std::optional<ObjectState>& which, std::optional<ObjectState> state) REQUIRES(mutex_) {
    if (which) remove_from_index(*which);
    if (state) add_to_index(*state);
    which = std::move(state);
  }

  [[nodiscard]] bool watch_is_past(const ObjectState& state) const REQUIRES(mutex_) {
    return state.number && reached_ && *state.number <= *reached_;
  }

  [[nodiscard]] const ObjectState* visible(const Entry& entry, Clock::time_point at) const REQUIRES(mutex_) {
    const ObjectState* state = entry.seen ? &*entry.seen : nullptr;
    if (entry.assumed && at < entry.assumed_until && !watch_is_past(*entry.assumed)) state = &*entry.assumed;
    const bool hidden = state != nullptr && entry.deletion && at < entry.deletion->until && !state->deleting &&
                        state->uid == entry.deletion->uid;
    return hidden ? nullptr : state;
  }

  // Do readers see this state already, or a newer one of the object, because it was assumed?
  [[nodiscard]] static bool is_assumed(const Entry& entry, const ObjectState& state, Clock::time_point at) {
    if (!entry.assumed || at >= entry.assumed_until || entry.assumed->uid != state.uid) return false;
    if (state.number && entry.assumed->number) return *state.number <= *entry.assumed->number;
    return !state.version.empty() && entry.assumed->version == state.version;
  }

  // Is this a repeated event: not newer than the last state that was seen under this name, or, when there is no object
  // of the name, not newer than the watch?
  [[nodiscard]] bool is_repeated(const std::optional<ObjectState>& seen, const ObjectState& state) const
      REQUIRES(mutex_) {
    if (!seen) return watch_is_past(state);
    if (state.number && seen->number) return *state.number <= *seen->number;
    return !state.version.empty() && seen->uid == state.uid && seen->version == state.version;
  }

  // Drops the assumptions of one key that are settled, and the key when nothing is left of it.
  void settle(typename std::map<api::ObjectKey, Entry>::iterator found, Clock::time_point at) REQUIRES(mutex_) {
    Entry& entry = found->second;
    if (entry.assumed && (at >= entry.assumed_until || watch_is_past(*entry.assumed))) set(entry.assumed, {});
    if (entry.deletion && at >= entry.deletion->until) entry.deletion.reset();
    if (!entry.assumed && !entry.deletion) provisional_.erase(found->first);
    if (entry.empty()) entries_.erase(found);
  }

  void settle_all(Clock::time_point at) REQUIRES(mutex_) {
    const std::set<api::ObjectKey> keys = provisional_;
    for (const api::ObjectKey& key : keys) settle(entries_.find(key), at);
    sweep_at_ = at + kAssumptionLife;
  }

  // Takes over the state of object `uid` from the watch or a list (nothing: it is gone), and drops the assumptions that
  // it settles.
  void update(const api::ObjectKey& key, const std::string& uid, std::optional<ObjectState> state, Clock::time_point at)
      REQUIRES(mutex_) {
    const auto found = entries_.try_emplace(key).first;
    Entry& entry = found->second;
    if (entry.assumed && !entry.assumed->number) set(entry.assumed, {});
    const bool is_deletion_confirmed = entry.deletion && entry.deletion->uid == uid && (!state || state->deleting);
    if (is_deletion_confirmed) entry.deletion.reset();
    set(entry.seen, std::move(state));
    settle(found, at);
  }

  // The watch begins anew from the version of a list.
  void restart_at(std::optional<uint64_t> number, const Listing& listed) REQUIRES(mutex_) {
    const std::optional<uint64_t> before = std::exchange(reached_, number);
    if (!number) {
      // The list's version is opaque; it is at least as new as that of its newest object.
      for (const auto& [key, state] : listed) reach(state.number);
    }
    if (!reached_ || !before || *reached_ >= *before) return;
    // The server was set back to an older state: versions from before cannot be compared with those from now on.
    for (const api::ObjectKey& key : provisional_) set(entries_.find(key)->second.assumed, {});
  }

  void reach(std::optional<uint64_t> number) REQUIRES(mutex_) {
    if (number && (!reached_ || *number > *reached_)) reached_ = number;
  }

  const Read read_;
  const Index index_;
  const Now now_;

  mutable Mutex mutex_;
  std::map<api::ObjectKey, Entry> entries_ GUARDED_BY(mutex_);
  // Index value → keys with the number of states (seen, assumed) that have it. A key may be listed for a state
  // that is not the visible one, so `find` checks again.
  std::map<std::string, std::map<api::ObjectKey, int>> by_value_ GUARDED_BY(mutex_);
  std::set<api::ObjectKey> provisional_ GUARDED_BY(mutex_);  // keys with an assumption
  Clock::time_point sweep_at_ GUARDED_BY(mutex_);
  bool synced_ GUARDED_BY(mutex_) = false;
  std::optional<uint64_t> reached_ GUARDED_BY(mutex_);  // newest version of the watch; nothing: unknown
};

template <typename View>
ViewPtr<View> Cache<View>::get(const api::ObjectKey& key) const {
  const Clock::time_point now = now_();
  const MutexLock lock(mutex_);
  const auto found = entries_.find(key);
  if (found == entries_.end()) return nullptr;
  const ObjectState* const state = visible(found->second, now);
  return state != nullptr ? state->view : nullptr;
}

template <typename View>
std::vector<ViewPtr<View>> Cache<View>::list() const {
  const Clock::time_point now = now_();
  std::vector<ViewPtr<View>> views;
  const MutexLock lock(mutex_);
  views.reserve(entries_.size());
  for (const auto& [key, entry] : entries_) {
    if (const ObjectState* const state = visible(entry, now)) views.push_back(state->view);
  }
  return views;
}

template <typename View>
std::vector<ViewPtr<View>> Cache<View>::find(const std::string& index_value) const {
  const Clock::time_point now = now_();
  std::vector<ViewPtr<View>> views;
  const MutexLock lock(mutex_);
  const auto keys = by_value_.find(index_value);
  if (keys == by_value_.end()) return views;
  for (const auto& [key, states] : keys->second) {
    const ObjectState* const state = visible(entries_.find(key)->second, now);
    if (state == nullptr) continue;
    const std::vector<std::string>& values = state->index_values;
    if (std::find(values.begin(), values.end(), index_value) != values.end()) views.push_back(state->view);
  }
  return views;
}

template <typename View>
bool Cache<View>::synced() const {
  const MutexLock lock(mutex_);
  return synced_;
}

template <typename View>
void Cache<View>::assume(Json object) {
  ObjectState state = state_of(std::move(object));
  const Clock::time_point now = now_();
  const MutexLock lock(mutex_);
  if (now >= sweep_at_) settle_all(now);
  if (watch_is_past(state)) return;
  Entry& entry = entries_[state.key];
  const bool older = entry.assumed && entry.assumed->number && state.number && *state.number < *entry.assumed->number;
  if (older) return;
  provisional_.insert(state.key);
  entry.assumed_until = state.number ? Clock::time_point::max() : now + kAssumptionLife;
  set(entry.assumed, std::move(state));
}

template <typename View>
void Cache<View>::assume_deleted(const api::ObjectKey& key, const std::string& uid) {
  const Clock::time_point now = now_();
  const MutexLock lock(mutex_);
  if (now >= sweep_at_) settle_all(now);
  // Kept even when the cache has no such object: a watch that lags behind may still bring it.
  entries_[key].deletion = AssumedDeletion{uid, now + kAssumptionLife};
  provisional_.insert(key);
}

template <typename View>
void Cache<View>::add(Json object, Listing& listing) const {
  ObjectState state = state_of(std::move(object));
  api::ObjectKey key = state.key;
  listing.insert_or_assign(std::move(key), std::move(state));
}

template <typename View>
std::vector<typename Cache<View>::Change> Cache<View>::replace(Listing listed, const std::string& list_version) {
  const Clock::time_point now = now_();
  std::vector<Change> changes;
  const MutexLock lock(mutex_);
  synced_ = true;
  // Objects that were created and deleted before the watch saw them: no event will come.
  std::map<api::ObjectKey, ViewPtr<View>> only_assumed;
  for (const api::ObjectKey& key : provisional_) {
    const Entry& entry = entries_.find(key)->second;
    if (entry.assumed && !entry.seen && !listed.contains(key)) only_assumed.emplace(key, entry.assumed->view);
  }
  restart_at(version_number(list_version), listed);

  std::vector<api::ObjectKey> missing;
  for (const auto& [key, entry] : entries_) {
    if (entry.seen && !listed.contains(key)) missing.push_back(key);
  }
  for (const api::ObjectKey& key : missing) {
    const ObjectState& seen = *entries_.find(key)->second.seen;
    changes.push_back({key, seen.view, nullptr});
    update(key, std::string(seen.uid), std::nullopt, now);
  }
  for (auto& [key, state] : listed) {
    const std::optional<ObjectState>& seen = entries_[key].seen;
    const bool same = seen && seen->uid == state.uid && seen->version == state.version;
    if (same && !state.version.empty()) continue;
    changes.push_back({key, seen ? seen->view : nullptr, state.view});
    const std::string uid = state.uid;
    update(key, uid, std::move(state), now);
  }
  settle_all(now);
  for (auto& [key, view] : only_assumed) {
    const auto found = entries_.find(key);
    const bool is_still_assumed = found != entries_.end() && found->second.assumed;
    if (!is_still_assumed) changes.push_back({.key = key, .before = std::move(view), .was_only_assumed = true});
  }
  return changes;
}

template <typename View>
typename Cache<View>::Change Cache<View>::put(Json object) {
  ObjectState state = state_of(std::move(object));
  const Clock::time_point now = now_();
  const MutexLock lock(mutex_);
  const Entry& entry = entries_[state.key];
  Change change{state.key, entry.seen ? entry.seen->view : nullptr, state.view, is_assumed(entry, state, now)};
  if (is_repeated(entry.seen, state)) {
    change.after = change.before;
    settle(entries_.find(change.key), now);
    return change;
  }
  reach(state.number);
  const std::string uid = state.uid;
  update(change.key, uid, std::move(state), now);
  return change;
}

template <typename View>
typename Cache<View>::Change Cache<View>::erase(const Json& object) {
  const api::ObjectKey key = api::key_of(object);
  const std::string uid = text_field(object, {"metadata", "uid"});
  const std::optional<uint64_t> number = version_number(text_field(object, {"metadata", "resourceVersion"}));
  const Clock::time_point now = now_();
  const MutexLock lock(mutex_);
  const auto found = entries_.find(key);
  const ObjectState* const seen = found != entries_.end() && found->second.seen ? &*found->second.seen : nullptr;
  const ViewPtr<View> before = seen != nullptr ? seen->view : nullptr;
  // A repeated delete event of an earlier object of this name.
  const bool of_another = seen != nullptr && seen->uid != uid;
  if (of_another && number && seen->number && *seen->number > *number) return {key, before, before};
  reach(number);
  update(key, uid, std::nullopt, now);
  return {key, before, nullptr};
}

template <typename View>
void Cache<View>::advance(const std::string& resource_version) {
  const MutexLock lock(mutex_);
  reach(version_number(resource_version));
}

}  // namespace lockstep::control
