#include "runner/doctor/collect.h"

#include <future>

#include "runner/base/build_info.h"

namespace lockstep::doctor {

Facts collect(const Request& request, const Environment& environment, const Result<std::string>& worker) {
  Facts facts{.version = build_version(), .request = request};
  // Driver and network are inspected in parallel, because loading a driver or resolving a name may take seconds. The
  // disk comes last and alone, so that the other inspections do not disturb its measurement.
  auto driver = std::async(std::launch::async, inspect_driver, std::cref(environment));
  auto network = std::async(std::launch::async, inspect_network, std::cref(request), std::cref(environment));
  facts.worker = inspect_worker(worker, environment);
  facts.machine = inspect_machine(environment);
  facts.data = inspect_data(request.data);
  facts.driver = driver.get();
  facts.network = network.get();
  facts.disk = inspect_disk(request.dir);
  return facts;
}

}  // namespace lockstep::doctor
