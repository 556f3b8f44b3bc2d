// The GPUs of this machine that this build can use, and its cores. Threads: any.
#pragma once

#include <string>
#include <string_view>

#include "runner/base/environment.h"
#include "runner/launch/launch_options.h"

namespace lockstep {

struct OwnMachine {
  int gpus = 0;          // GPUs that a run would use; 0: it trains on the CPU
  std::string gpu_name;  // name of the first GPU; empty: not known
  int cores = 1;         // cores that this process may use (usable_cores)
  std::string cpu_name;  // empty: not known
};

// Loads the driver's libraries, unless --device cpu asks for none.
OwnMachine look_at_own_machine(const Environment& environment, DeviceChoice device);

// The model of the first processor in the text of /proc/cpuinfo. Pure.
std::string cpu_name_of(std::string_view cpuinfo);

// "2 x NVIDIA H100 80GB HBM3, 16 cores", "CPU (…), 2 cores". Pure.
std::string device_words(const OwnMachine& machine);

}  // namespace lockstep
