#include "runner/dist/fault.h"

#include <c10/util/Exception.h>

#include <array>
#include <new>
#include <string>
#include <string_view>

namespace lockstep {
namespace {

struct Phrase {
  std::string_view text;
  ExitCode code;
};

// First match wins. Gloo throws std::runtime_errors of its own types, NCCL's errors come as DistBackendError, so the
// text is all there is.
constexpr std::array kPhrases{
    Phrase{"out of memory", ExitCode::kOutOfMemory},
    Phrase{"can't allocate memory", ExitCode::kOutOfMemory},
    Phrase{"CUDA error", ExitCode::kDeviceFault},
    Phrase{"Timed out", ExitCode::kTimeout},
    Phrase{"timed out", ExitCode::kTimeout},
    Phrase{"Timeout", ExitCode::kTimeout},
    Phrase{"timeout", ExitCode::kTimeout},
    Phrase{"Connection closed by peer", ExitCode::kPeerLost},
    Phrase{"Connection reset by peer", ExitCode::kPeerLost},
    Phrase{"Connection refused", ExitCode::kPeerLost},
    Phrase{"Broken pipe", ExitCode::kPeerLost},
    Phrase{"gloo", ExitCode::kPeerLost},
    Phrase{"NCCL", ExitCode::kPeerLost},
};

// c10 appends a C++ stack trace that no user needs.
std::string first_paragraph(const std::exception& exception) {
  std::string text = exception.what();
  for (const std::string_view marker : {"\nException raised from", "\nC++ CapturedTraceback"}) {
    if (const auto at = text.find(marker); at != std::string::npos) text.resize(at);
  }
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.pop_back();
  return text;
}

}  // namespace

Failure classify_fault(const std::exception& exception) {
  const std::string text = first_paragraph(exception);
  if (dynamic_cast<const std::bad_alloc*>(&exception) != nullptr ||
      dynamic_cast<const c10::OutOfMemoryError*>(&exception) != nullptr) {
    return {ExitCode::kOutOfMemory, "out of memory: " + text};
  }
  for (const Phrase& phrase : kPhrases) {
    if (text.find(phrase.text) != std::string::npos) return {phrase.code, text};
  }
  if (dynamic_cast<const c10::DistError*>(&exception) != nullptr) return {ExitCode::kPeerLost, text};
  return {ExitCode::kCrash, text};
}

}  // namespace lockstep
