// Cache: the read model of one resource, filled by an informer and read by reconcilers.
//
// It keeps what `trim` leaves of each object, so that ten thousand pods take tens of MB. A reconciler puts the answers
// to its writes into the cache (`assume`), so that it reads its own writes before the watch reports them:
//   - Readers see an assumed object until the watch has reached its resourceVersion. If the watch is already past that
//     version, the object is ignored: a late answer neither sets the cache back nor revives a deleted object.
//   - An assumed deletion hides the object with that UID until the watch confirms it: the object is gone, or it has a
//     deletionTimestamp and then is visible again. Another object of the same name stays visible.
// Versions are compared as numbers (resource_version.h), so a reader never sees an older state of an object after a
// newer one. Two kinds of assumption have no version to compare and end after kAssumptionLife at the latest: a deletion
// (no answer has its version), and an object with an opaque version (which the watch's next event on it ends, too).
// Threads: safe from all threads; objects are immutable once in the cache. `trim` and `index` run without a lock.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "operator/api/object_meta.h"
#include "operator/control/clock.h"
#include "runner/base/json.h"

namespace lockstep::control {

using ObjectPtr = std::shared_ptr<const Json>;

// Longer than the lag of a working watch. After a broken watch the informer lists again, and the list ends the
// assumptions that it contradicts.
inline constexpr std::chrono::seconds kAssumptionLife{30};

class Cache {
 public:
  // Removes the fields of an object that nobody reads. It must keep apiVersion, kind, and metadata's name, namespace,
  // uid, resourceVersion and deletionTimestamp. It may be called with an object that is already trimmed.
  using Trim = std::function<Json(Json)>;
  // The values under which an object can be found with `find` ("ns/job" of a pod's owner). Empty: none.
  using Index = std::function<std::vector<std::string>(const Json&)>;

  explicit Cache(Trim trim = {}, Index index = {}, Now now = Clock::now);
  ~Cache();
  Cache(const Cache&) = delete;
  Cache& operator=(const Cache&) = delete;

  [[nodiscard]] ObjectPtr get(const api::ObjectKey& key) const;                     // nullptr when it is not there
  [[nodiscard]] std::vector<ObjectPtr> list() const;                                // ordered by key
  [[nodiscard]] std::vector<ObjectPtr> find(const std::string& index_value) const;  // ordered by key
  [[nodiscard]] size_t size() const;
  // Has a whole list arrived?
  [[nodiscard]] bool synced() const;

  // For reconcilers: the object as an answer of the API server has it, or a deletion that the API server has accepted.
  void assume(Json object);
  void assume_deleted(const api::ObjectKey& key, const std::string& uid);

  // For the informer. `before` and `after` are the states from the watch and lists (nullptr: no object), without
  // assumptions: an assumed object is reported only when the watch reports it. One exception: an object that was only
  // assumed and is missing in a list is reported as gone, since no event will come. If the two pointers are equal,
  // nothing changed: the cache had this state or a newer one.
  struct Change {
    ObjectPtr before;
    ObjectPtr after;
    bool was_assumed = false;  // readers have seen `after`, or something newer of this object
  };
  // A whole list; objects that are missing in it are gone. Returns only what changed. The list replaces even newer
  // states (the API server may have been restored from a backup). An empty version is opaque.
  std::vector<Change> replace(std::vector<Json> objects, const std::string& list_version = "");
  Change put(Json object);
  Change erase(const Json& object);
  // The watch has come this far (a bookmark).
  void advance(const std::string& resource_version);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep::control
