// Small objects for the tests of this room.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "operator/control/cache.h"
#include "runner/base/json.h"

namespace lockstep::control {

struct Widget {
  std::string name = "a";
  std::string version = "1";
  std::string uid = "u1";
  std::string owner = {};
  bool deleting = false;
};

inline Json widget(const Widget& widget) {
  Json object = {{"apiVersion", "v1"},
                 {"kind", "Pod"},
                 {"metadata",
                  {{"namespace", "ns"},
                   {"name", widget.name},
                   {"uid", widget.uid},
                   {"resourceVersion", widget.version},
                   {"labels", {{"owner", widget.owner}}}}},
                 {"spec", {{"bulk", "x"}}}};
  if (widget.deleting) object["metadata"]["deletionTimestamp"] = "2026-11-21T10:00:00Z";
  return object;
}

inline std::string version_of(const Json& object) { return object["metadata"]["resourceVersion"].get<std::string>(); }

// A whole list of these objects.
template <typename View>
auto replace(Cache<View>& cache, std::vector<Json> objects, const std::string& version = "") {
  typename Cache<View>::Listing listing;
  for (Json& object : objects) cache.add(std::move(object), listing);
  return cache.replace(std::move(listing), version);
}

}  // namespace lockstep::control
