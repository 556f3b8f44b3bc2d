// Kubernetes' quantities: 500m, 1.5Gi, 1e3, 2. Pure.
// https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity
#pragma once

#include <optional>

#include "runner/base/json.h"

namespace lockstep::api {

inline constexpr long double kNanoUnits = 1e9L;  // of one

// In billionths, rounded up as Kubernetes does. Equal quantities give equal numbers (1000m and 1), up to 19 digits.
// nullopt: the value is no quantity.
std::optional<long double> nano_units(const Json& quantity);

}  // namespace lockstep::api
