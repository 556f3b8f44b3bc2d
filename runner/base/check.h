// LOCKSTEP_CHECK: aborts on a programmer's error, in release too. Never for input from a user, the network or a disk.
#pragma once

namespace lockstep {

// Prints "file:line: check failed: condition: message" to stderr and aborts.
[[noreturn]] void check_failed(const char* file, int line, const char* condition, const char* message);

}  // namespace lockstep

#define LOCKSTEP_CHECK(condition, message) \
  ((condition) ? static_cast<void>(0) : ::lockstep::check_failed(__FILE__, __LINE__, #condition, message))
