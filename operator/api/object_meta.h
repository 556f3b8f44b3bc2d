// ObjectMeta: the metadata of every Kubernetes object, and the references between objects. Pure.
//
// Rooms pass objects to each other as Json; these structs are read from it where the fields are used. Names are those
// of k8s.io/apimachinery meta/v1.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runner/base/json.h"

namespace lockstep::api {

// Names an object of one kind. `ns` is empty for cluster-scoped objects.
struct ObjectKey {
  std::string ns;
  std::string name;
  auto operator<=>(const ObjectKey&) const = default;  // NOLINT(modernize-use-nullptr): clang-tidy's own 0
};
// "ns/name", or "name".
std::string to_string(const ObjectKey& key);

struct OwnerReference {
  std::string api_version;
  std::string kind;
  std::string name;
  std::string uid;
  bool controller = false;
};

// Times are Unix seconds: the API's resolution. The micro-second times of Lease and Event are handled where they occur.
using UnixSeconds = int64_t;

struct ObjectMeta {
  std::string name;
  std::string ns;
  std::string uid;
  std::string resource_version;
  int64_t generation = 0;  // metadata.generation, the spec's counter
  UnixSeconds created = 0;
  std::optional<UnixSeconds> deletion_time;  // set: being deleted
  std::map<std::string, std::string> labels;
  std::map<std::string, std::string> annotations;
  std::vector<OwnerReference> owners;
  std::vector<std::string> finalizers;

  [[nodiscard]] ObjectKey key() const { return {ns, name}; }
  // The owner that has controller=true; nullptr when there is none.
  [[nodiscard]] const OwnerReference* controller() const;
};

// `object`: a whole object, with its `metadata`. A field that is missing or has the wrong type is left empty: the API
// server has checked what it stores, and tests may build objects with only some of the fields.
ObjectMeta meta_of(const Json& object);
ObjectKey key_of(const Json& object);

// RFC 3339, in UTC: "2026-11-21T10:00:00Z", as metav1.Time writes it.
std::string format_time(UnixSeconds time);
// Accepts fractions (cut off) and offsets, as metav1.MicroTime and people write them. Years 0000 to 9999.
std::optional<UnixSeconds> parse_time(std::string_view text);
// The two largest units, for display: "45s", "3m10s", "2h5m", "3d4h". A negative duration is shown as "0s".
std::string format_duration(int64_t seconds);

}  // namespace lockstep::api
