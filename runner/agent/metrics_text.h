// The text of /metrics: the workers' families merged by name with the agent's own. Pure.
#pragma once

#include <string>
#include <vector>

#include "runner/contract/messages.h"

namespace lockstep {

// In the Prometheus text format (version 0.0.4), families by name, samples in the order given. Of two families with one
// name and different types the first one stays. Families whose name or labels Prometheus would refuse are left out: one
// bad worker must not cost the whole scrape.
std::string metrics_text(const std::vector<const std::vector<MetricFamily>*>& sources);

}  // namespace lockstep
