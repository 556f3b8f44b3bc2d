// Cache: the read model of one resource, filled by an informer and read by reconcilers.
//
// It keeps what `trim` leaves of each object, so that ten thousand pods are tens of MB. What a reconciler has just
// written can be told with `assume`, so that it reads its own writes before the watch brings them:
//   - An assumed object is seen until the watch has come as far as its resourceVersion. One that the watch is past
//     already is not taken: an answer that arrives late never turns the cache back, nor revives what was deleted.
//   - An assumed deletion hides the object with that UID until the watch says the same (it is gone, or marked with a
//     deletionTimestamp: then it is seen again, marked). Another object of the name is seen.
// Versions are compared as numbers (resource_version.h), so what a reader sees of an object never goes back. Two kinds
// of assumption have no version to compare and end after kAssumptionLife at the latest: a deletion (no answer has its
// version), and an object with an opaque version (the watch's next event on this object ends it, too).
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

// Longer than a working watch lags behind; after a broken one the informer lists again, which ends what it contradicts.
inline constexpr std::chrono::seconds kAssumptionLife{30};

class Cache {
 public:
  // Keeps apiVersion, kind, and of metadata name, namespace, uid, resourceVersion and deletionTimestamp. What it is
  // given may be trimmed already.
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

  // What a reconciler learned from an answer of the API server.
  void assume(Json object);
  void assume_deleted(const api::ObjectKey& key, const std::string& uid);

  // What the informer calls. `before` and `after` are the states known from the watch and lists (nullptr: no object),
  // without assumptions: an assumed object is reported when the watch brings it. One exception: an object that was only
  // assumed and that a list lacks is reported as gone, since no event will come. Two equal pointers: no news, the cache
  // had this state or a newer one.
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
