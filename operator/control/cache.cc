#include "operator/control/cache.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "operator/control/resource_version.h"
#include "runner/base/mutex.h"

namespace lockstep::control {

namespace {

// An object's state at one resourceVersion.
struct State {
  api::ObjectKey key;
  std::string uid;
  std::string version;
  std::optional<uint64_t> number;  // of the version; nothing: opaque
  bool deleting = false;
  ObjectPtr object;
  std::vector<std::string> index_values;
};

struct AssumedDeletion {
  std::string uid;
  Clock::time_point until;
};

struct CacheEntry {
  std::optional<State> seen;  // in the watch or a list
  std::optional<State> assumed;
  Clock::time_point assumed_until;  // max() when its version can be compared with the watch's
  std::optional<AssumedDeletion> deletion;

  [[nodiscard]] bool empty() const { return !seen && !assumed && !deletion; }
};

}  // namespace

struct Cache::Impl {
  Trim trim;
  Index index;
  Now now;

  mutable Mutex mutex;
  std::map<api::ObjectKey, CacheEntry> entries GUARDED_BY(mutex);
  // Index value → keys with the number of states (seen, assumed) that have it. A key may be listed for a state
  // that is not the visible one, so `find` checks again.
  std::map<std::string, std::map<api::ObjectKey, int>> by_value GUARDED_BY(mutex);
  std::set<api::ObjectKey> provisional GUARDED_BY(mutex);  // keys with an assumption
  Clock::time_point sweep_at GUARDED_BY(mutex);
  bool synced GUARDED_BY(mutex) = false;
  std::optional<uint64_t> reached GUARDED_BY(mutex);  // newest version of the watch; nothing: unknown

  State read(Json object) const {
    State state;
    const api::ObjectMeta meta = api::meta_of(object);
    state.key = meta.key();
    state.uid = meta.uid;
    state.version = meta.resource_version;
    state.number = version_number(state.version);
    state.deleting = meta.deletion_time.has_value();
    if (trim) object = trim(std::move(object));
    state.object = std::make_shared<const Json>(std::move(object));
    if (index) state.index_values = index(*state.object);
    return state;
  }

  // All that follows is called with the lock held.

  void add_to_index(const State& state) REQUIRES(mutex) {
    for (const std::string& value : state.index_values) ++by_value[value][state.key];
  }

  void remove_from_index(const State& state) REQUIRES(mutex) {
    for (const std::string& value : state.index_values) {
      const auto keys = by_value.find(value);
      const auto key = keys->second.find(state.key);
      if (--key->second == 0) keys->second.erase(key);
      if (keys->second.empty()) by_value.erase(keys);
    }
  }

  void set(std::optional<State>& place, std::optional<State> state) REQUIRES(mutex) {
    if (place) remove_from_index(*place);
    if (state) add_to_index(*state);
    place = std::move(state);
  }

  [[nodiscard]] bool watch_is_past(const State& state) const REQUIRES(mutex) {
    return state.number && reached && *state.number <= *reached;
  }

  [[nodiscard]] const State* visible(const CacheEntry& entry, Clock::time_point at) const REQUIRES(mutex) {
    const State* state = entry.seen ? &*entry.seen : nullptr;
    if (entry.assumed && at < entry.assumed_until && !watch_is_past(*entry.assumed)) state = &*entry.assumed;
    const bool hidden = state != nullptr && entry.deletion && at < entry.deletion->until && !state->deleting &&
                        state->uid == entry.deletion->uid;
    return hidden ? nullptr : state;
  }

  // Do readers see this state already, or a newer one of the object, because it was assumed?
  [[nodiscard]] static bool is_assumed(const CacheEntry& entry, const State& state, Clock::time_point at) {
    if (!entry.assumed || at >= entry.assumed_until || entry.assumed->uid != state.uid) return false;
    if (state.number && entry.assumed->number) return *state.number <= *entry.assumed->number;
    return !state.version.empty() && entry.assumed->version == state.version;
  }

  // Is this a repeated event: not newer than the last state that was seen under this name, or, when there is no object
  // of the name, not newer than the watch?
  [[nodiscard]] bool is_repeated(const State* seen, const State& state) const REQUIRES(mutex) {
    if (seen == nullptr) return watch_is_past(state);
    if (state.number && seen->number) return *state.number <= *seen->number;
    return !state.version.empty() && seen->uid == state.uid && seen->version == state.version;
  }

  // Drops the assumptions of one key that are settled, and the key when nothing is left of it.
  void settle(std::map<api::ObjectKey, CacheEntry>::iterator found, Clock::time_point at) REQUIRES(mutex) {
    CacheEntry& entry = found->second;
    if (entry.assumed && (at >= entry.assumed_until || watch_is_past(*entry.assumed))) set(entry.assumed, {});
    if (entry.deletion && at >= entry.deletion->until) entry.deletion.reset();
    if (!entry.assumed && !entry.deletion) provisional.erase(found->first);
    if (entry.empty()) entries.erase(found);
  }

  void settle_all(Clock::time_point at) REQUIRES(mutex) {
    const std::set<api::ObjectKey> keys = provisional;
    for (const api::ObjectKey& key : keys) settle(entries.find(key), at);
    sweep_at = at + kAssumptionLife;
  }

  // Takes over the state of object `uid` from the watch or a list (nothing: it is gone), and drops the assumptions that
  // it settles.
  void update(const api::ObjectKey& key, const std::string& uid, std::optional<State> state, Clock::time_point at)
      REQUIRES(mutex) {
    const auto found = entries.try_emplace(key).first;
    CacheEntry& entry = found->second;
    if (entry.assumed && !entry.assumed->number) set(entry.assumed, {});
    const bool is_deletion_confirmed = entry.deletion && entry.deletion->uid == uid && (!state || state->deleting);
    if (is_deletion_confirmed) entry.deletion.reset();
    set(entry.seen, std::move(state));
    settle(found, at);
  }

  // The watch begins anew from the version of a list.
  void restart_at(std::optional<uint64_t> number, const std::map<api::ObjectKey, State>& listed) REQUIRES(mutex) {
    const std::optional<uint64_t> before = std::exchange(reached, number);
    if (!number) {
      // The list's version is opaque; it is at least as new as that of its newest object.
      for (const auto& [key, state] : listed) reach(state.number);
    }
    if (!reached || !before || *reached >= *before) return;
    // The server was set back to an older state: versions from before cannot be compared with those from now on.
    for (const api::ObjectKey& key : provisional) set(entries.find(key)->second.assumed, {});
  }

  void reach(std::optional<uint64_t> number) REQUIRES(mutex) {
    if (number && (!reached || *number > *reached)) reached = number;
  }
};

Cache::Cache(Trim trim, Index index, Now now) : impl_(std::make_unique<Impl>()) {
  impl_->trim = std::move(trim);
  impl_->index = std::move(index);
  impl_->now = std::move(now);
  impl_->sweep_at = impl_->now() + kAssumptionLife;
}
Cache::~Cache() = default;

ObjectPtr Cache::get(const api::ObjectKey& key) const {
  const Clock::time_point now = impl_->now();
  const MutexLock lock(impl_->mutex);
  const auto found = impl_->entries.find(key);
  if (found == impl_->entries.end()) return nullptr;
  const State* state = impl_->visible(found->second, now);
  return state != nullptr ? state->object : nullptr;
}

std::vector<ObjectPtr> Cache::list() const {
  const Clock::time_point now = impl_->now();
  std::vector<ObjectPtr> objects;
  const MutexLock lock(impl_->mutex);
  objects.reserve(impl_->entries.size());
  for (const auto& [key, entry] : impl_->entries) {
    if (const State* state = impl_->visible(entry, now); state != nullptr) objects.push_back(state->object);
  }
  return objects;
}

std::vector<ObjectPtr> Cache::find(const std::string& index_value) const {
  const Clock::time_point now = impl_->now();
  std::vector<ObjectPtr> objects;
  const MutexLock lock(impl_->mutex);
  const auto keys = impl_->by_value.find(index_value);
  if (keys == impl_->by_value.end()) return objects;
  for (const auto& [key, states] : keys->second) {
    const State* state = impl_->visible(impl_->entries.find(key)->second, now);
    if (state == nullptr) continue;
    const std::vector<std::string>& values = state->index_values;
    if (std::find(values.begin(), values.end(), index_value) != values.end()) objects.push_back(state->object);
  }
  return objects;
}

size_t Cache::size() const {
  const Clock::time_point now = impl_->now();
  const MutexLock lock(impl_->mutex);
  const auto is_visible = [&](const auto& entry)
                              REQUIRES(impl_->mutex) { return impl_->visible(entry.second, now) != nullptr; };
  return static_cast<size_t>(std::count_if(impl_->entries.begin(), impl_->entries.end(), is_visible));
}

bool Cache::synced() const {
  const MutexLock lock(impl_->mutex);
  return impl_->synced;
}

void Cache::assume(Json object) {
  State state = impl_->read(std::move(object));
  const Clock::time_point now = impl_->now();
  const MutexLock lock(impl_->mutex);
  if (now >= impl_->sweep_at) impl_->settle_all(now);
  if (impl_->watch_is_past(state)) return;
  const auto found = impl_->entries.try_emplace(state.key).first;
  CacheEntry& entry = found->second;
  const bool older = entry.assumed && entry.assumed->number && state.number && *state.number < *entry.assumed->number;
  if (older) return;
  impl_->provisional.insert(state.key);
  entry.assumed_until = state.number ? Clock::time_point::max() : now + kAssumptionLife;
  impl_->set(entry.assumed, std::move(state));
}

void Cache::assume_deleted(const api::ObjectKey& key, const std::string& uid) {
  const Clock::time_point now = impl_->now();
  const MutexLock lock(impl_->mutex);
  if (now >= impl_->sweep_at) impl_->settle_all(now);
  // Kept even when the cache has no such object: a watch that lags behind may still bring it.
  impl_->entries[key].deletion = AssumedDeletion{uid, now + kAssumptionLife};
  impl_->provisional.insert(key);
}

std::vector<Cache::Change> Cache::replace(std::vector<Json> objects, const std::string& list_version) {
  std::map<api::ObjectKey, State> listed;
  for (Json& object : objects) {
    State state = impl_->read(std::move(object));
    api::ObjectKey key = state.key;
    listed.insert_or_assign(std::move(key), std::move(state));
  }
  const Clock::time_point now = impl_->now();
  std::vector<Change> changes;
  const MutexLock lock(impl_->mutex);
  impl_->synced = true;
  // Objects that were created and deleted before the watch saw them: no event will come.
  std::map<api::ObjectKey, ObjectPtr> only_assumed;
  for (const api::ObjectKey& key : impl_->provisional) {
    const CacheEntry& entry = impl_->entries.find(key)->second;
    if (entry.assumed && !entry.seen && !listed.contains(key)) only_assumed.emplace(key, entry.assumed->object);
  }
  impl_->restart_at(version_number(list_version), listed);

  std::vector<api::ObjectKey> missing;
  for (const auto& [key, entry] : impl_->entries) {
    if (entry.seen && !listed.contains(key)) missing.push_back(key);
  }
  for (const api::ObjectKey& key : missing) {
    const State& seen = *impl_->entries.find(key)->second.seen;
    changes.push_back({seen.object, nullptr});
    impl_->update(key, std::string(seen.uid), std::nullopt, now);
  }
  for (auto& [key, state] : listed) {
    const auto found = impl_->entries.find(key);
    const State* seen = found != impl_->entries.end() && found->second.seen ? &*found->second.seen : nullptr;
    const bool same = seen != nullptr && seen->uid == state.uid && seen->version == state.version;
    if (same && !state.version.empty()) continue;
    changes.push_back({seen != nullptr ? seen->object : nullptr, state.object});
    const std::string uid = state.uid;
    impl_->update(key, uid, std::move(state), now);
  }
  impl_->settle_all(now);
  for (auto& [key, object] : only_assumed) {
    const auto found = impl_->entries.find(key);
    const bool is_still_assumed = found != impl_->entries.end() && found->second.assumed;
    if (!is_still_assumed) changes.push_back({std::move(object), nullptr});
  }
  return changes;
}

Cache::Change Cache::put(Json object) {
  State state = impl_->read(std::move(object));
  const Clock::time_point now = impl_->now();
  const MutexLock lock(impl_->mutex);
  const auto found = impl_->entries.find(state.key);
  const State* seen = found != impl_->entries.end() && found->second.seen ? &*found->second.seen : nullptr;
  ObjectPtr before = seen != nullptr ? seen->object : nullptr;
  if (impl_->is_repeated(seen, state)) return {before, before};
  impl_->reach(state.number);
  const bool was_assumed = found != impl_->entries.end() && impl_->is_assumed(found->second, state, now);
  ObjectPtr after = state.object;
  const api::ObjectKey key = state.key;
  const std::string uid = state.uid;
  impl_->update(key, uid, std::move(state), now);
  return {std::move(before), std::move(after), was_assumed};
}

Cache::Change Cache::erase(const Json& object) {
  const api::ObjectMeta meta = api::meta_of(object);
  const std::optional<uint64_t> number = version_number(meta.resource_version);
  const Clock::time_point now = impl_->now();
  const MutexLock lock(impl_->mutex);
  const auto found = impl_->entries.find(meta.key());
  const State* seen = found != impl_->entries.end() && found->second.seen ? &*found->second.seen : nullptr;
  ObjectPtr before = seen != nullptr ? seen->object : nullptr;
  // A repeated delete event of an earlier object of this name.
  const bool of_another = seen != nullptr && seen->uid != meta.uid;
  if (of_another && number && seen->number && *seen->number > *number) return {before, before};
  impl_->reach(number);
  impl_->update(meta.key(), meta.uid, std::nullopt, now);
  return {std::move(before), nullptr};
}

void Cache::advance(const std::string& resource_version) {
  const MutexLock lock(impl_->mutex);
  impl_->reach(version_number(resource_version));
}

}  // namespace lockstep::control
