// The text of /metrics: the workers' families merged by name with the agent's own. Pure.
#pragma once

#include <string>
#include <vector>

#include "runner/contract/messages.h"

namespace lockstep {

// In the Prometheus text format (version 0.0.4), families sorted by name, samples in the order given. Of two families
// with one name and different types the first is kept. Families with a name or labels that Prometheus refuses are left
// out, so that one broken worker does not make the whole scrape fail.
std::string metrics_text(const std::vector<const std::vector<MetricFamily>*>& sources);

}  // namespace lockstep
