// WatchEvent: one change that a watch reports.
#pragma once

#include "runner/base/json.h"

namespace lockstep::kube {

struct WatchEvent {
  enum class Type { kAdded, kModified, kDeleted, kBookmark };
  Type type = Type::kAdded;
  Json object;  // of a bookmark: only apiVersion, kind and metadata.resourceVersion
};

}  // namespace lockstep::kube
