// Many creates as send_all takes them.
#pragma once

#include <vector>

#include "operator/kube/client.h"

namespace lockstep::kube {

inline std::vector<Request> creates_of(const Resource& resource, const std::vector<Json>& objects) {
  std::vector<Request> requests;
  for (const Json& object : objects) requests.emplace_back(Create{resource, object});
  return requests;
}

}  // namespace lockstep::kube
