#include "runner/cli/own_machine.h"

#include "runner/base/cgroup.h"
#include "runner/base/kernel_file.h"
#include "runner/base/plural.h"
#include "runner/doctor/collect.h"

namespace lockstep {
OwnMachine look_at_own_machine(const Environment& environment, DeviceChoice device) {
  OwnMachine machine{
      .gpus = 0, .gpu_name = "", .cores = usable_cores(), .cpu_name = cpu_name_of(read_kernel_file("/proc/cpuinfo"))};
  if (!LOCKSTEP_BUILD_HAS_CUDA || device == DeviceChoice::kCpu) return machine;
  const doctor::DriverFacts driver = doctor::inspect_driver(environment);
  machine.gpus = static_cast<int>(driver.visible.size());
  if (!driver.gpus.empty()) machine.gpu_name = driver.gpus.front().name;
  return machine;
}

std::string cpu_name_of(std::string_view cpuinfo) {
  const size_t label = cpuinfo.find("model name");
  const size_t colon = label == std::string_view::npos ? label : cpuinfo.find(": ", label);
  if (colon == std::string_view::npos) return "";
  const std::string_view rest = cpuinfo.substr(colon + 2);
  return std::string(rest.substr(0, rest.find('\n')));
}

std::string device_words(const OwnMachine& machine) {
  if (machine.gpus == 0) {
    return "CPU" + (machine.cpu_name.empty() ? "" : " (" + machine.cpu_name + ")") + ", " +
           plural(machine.cores, "core");
  }
  return std::to_string(machine.gpus) + " x " + (machine.gpu_name.empty() ? "GPU" : machine.gpu_name) + ", " +
         plural(machine.cores, "core");
}

}  // namespace lockstep
