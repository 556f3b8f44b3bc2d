#include "runner/dist/fault.h"

#include <c10/util/Exception.h>
#include <gloo/common/error.h>
#include <gloo/common/logging.h>

#include <array>
#include <initializer_list>
#include <new>
#include <string>
#include <string_view>

namespace lockstep {
namespace {

struct NamedResult {
  std::string_view name;
  NcclResult result;
};

// The names that c10d uses in its messages.
constexpr std::array kNcclResults{
    NamedResult{"ncclUnhandledCudaError:", NcclResult::kUnhandledCudaError},
    NamedResult{"ncclSystemError:", NcclResult::kSystemError},
    NamedResult{"ncclInternalError:", NcclResult::kInternalError},
    NamedResult{"ncclInvalidArgument:", NcclResult::kInvalidArgument},
    NamedResult{"ncclInvalidUsage:", NcclResult::kInvalidUsage},
    NamedResult{"ncclRemoteError:", NcclResult::kRemoteError},
};

template <typename... Types>
bool is_a(const std::exception& exception) {
  return ((dynamic_cast<const Types*>(&exception) != nullptr) || ...);
}

bool contains_any(const std::string& text, std::initializer_list<std::string_view> phrases) {
  for (const std::string_view phrase : phrases) {
    if (text.find(phrase) != std::string::npos) return true;
  }
  return false;
}

// c10 appends a C++ stack trace that no user needs.
std::string first_paragraph(const std::exception& exception) {
  std::string text = exception.what();
  for (const std::string_view marker : {"\nException raised from", "\nC++ CapturedTraceback", "\nframe #0: "}) {
    if (const auto at = text.find(marker); at != std::string::npos) text.resize(at);
  }
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.pop_back();
  return text;
}

ExitCode meaning_of(NcclResult result, const std::string& text) {
  switch (result) {
    case NcclResult::kUnhandledCudaError:
      return contains_any(text, {"out of memory"}) ? ExitCode::kOutOfMemory : ExitCode::kDeviceFault;
    case NcclResult::kInvalidArgument:
    case NcclResult::kInvalidUsage:
      return ExitCode::kCrash;
    // Depending on the transport, NCCL reports a broken connection as any of these. If this machine's own network is
    // broken, forming the next group fails with a message that says so.
    case NcclResult::kSystemError:
    case NcclResult::kInternalError:
    case NcclResult::kRemoteError:
      break;
  }
  return ExitCode::kPeerLost;
}

ExitCode meaning_of(const std::exception& exception, const std::string& text) {
  if (is_a<std::bad_alloc, c10::OutOfMemoryError>(exception)) return ExitCode::kOutOfMemory;
  if (const auto* ours = dynamic_cast<const RunFault*>(&exception)) return ours->code;
  if (is_a<c10::AcceleratorError>(exception)) {
    return contains_any(text, {"out of memory"}) ? ExitCode::kOutOfMemory : ExitCode::kDeviceFault;
  }
  if (const auto result = nccl_result_of(exception)) return meaning_of(*result, text);
  // These types are used both for a broken connection and for one that was silent for too long.
  if (is_a<c10::DistError, gloo::IoException>(exception)) {
    const bool took_too_long = contains_any(text, {"imed out", "ait timeout", "NCCL timeout", "operation timeout"});
    return took_too_long ? ExitCode::kTimeout : ExitCode::kPeerLost;
  }
  if (is_a<gloo::Exception, gloo::EnforceNotMet>(exception)) return ExitCode::kPeerLost;
  // TORCH_CHECK throws a plain c10::Error for everything: errors of CUDA's libraries, a failed allocation on the host.
  if (is_a<c10::Error>(exception)) {
    if (contains_any(text, {"out of memory", "can't allocate memory"})) return ExitCode::kOutOfMemory;
    if (contains_any(text, {"CUDA error", "CUDA driver error", "cuDNN error"})) return ExitCode::kDeviceFault;
  }
  return ExitCode::kCrash;
}

}  // namespace

std::optional<NcclResult> nccl_result_of(const std::exception& exception) {
  if (const auto* ours = dynamic_cast<const NcclFault*>(&exception)) return ours->result;
  if (!is_a<c10::DistBackendError>(exception)) return std::nullopt;
  const std::string_view text = exception.what();
  for (const NamedResult& named : kNcclResults) {
    if (text.find(named.name) != std::string_view::npos) return named.result;
  }
  return std::nullopt;
}

Failure classify_fault(const std::exception& exception) {
  const std::string text = first_paragraph(exception);
  const ExitCode code = meaning_of(exception, text);
  const bool says_so = contains_any(text, {"out of memory"});
  return {code, code == ExitCode::kOutOfMemory && !says_so ? "out of memory: " + text : text};
}

}  // namespace lockstep
