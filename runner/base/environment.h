// The process's environment, as a value: everybody but read_environment takes it as an argument.
// Threads: pure, once it is read.
#pragma once

#include <map>
#include <string>
#include <string_view>

namespace lockstep {

using Environment = std::map<std::string, std::string>;

// The process's environment. The only place that reads `environ`.
Environment read_environment();

std::string read_host_name();  // "unknown" when it cannot be read

// The variable's value; empty where it is not set.
std::string variable(const Environment& environment, std::string_view name);

}  // namespace lockstep
