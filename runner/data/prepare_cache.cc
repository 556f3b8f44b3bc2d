#include "runner/data/prepare_cache.h"

#include <unistd.h>

#include <array>
#include <cstdio>
#include <random>

#include "runner/base/cgroup.h"
#include "runner/base/sha256.h"

namespace lockstep::preparation {
namespace {

// A source is divided into about this many parts, each of at least one piece and at most kPartPieces: enough that all
// cores have work and that little is lost when a preparation is killed, few enough to have a file for each.
constexpr int64_t kParts = 64;
constexpr int64_t kPartPieces = 256;
constexpr size_t kReasonsShown = 3;
constexpr size_t kFingerprintDigits = 16;

}  // namespace

int threads_of(const PrepareOptions& options) { return options.threads > 0 ? options.threads : usable_cores(); }

int64_t pieces_of_part(int64_t pieces) { return std::clamp<int64_t>((pieces + kParts - 1) / kParts, 1, kPartPieces); }

std::string parts_folder(const std::string& cache_path) {
  return join_path(parent_path(cache_path), "." + base_name(cache_path) + ".parts");
}

std::string part_name(size_t part) {
  std::array<char, 32> name = {};
  std::snprintf(name.data(), name.size(), "part-%06zu", part);
  return name.data();
}

std::string cache_path(const std::string& folder, const std::string& many, uint32_t version,
                       const std::string& fingerprint) {
  const std::string digest = sha256_hex(many + " " + std::to_string(version) + "\n" + fingerprint);
  return join_path(folder, many + "-" + digest.substr(0, kFingerprintDigits) + ".cache");
}

std::string unique_tag() {
  std::random_device random;
  std::array<char, 40> tag = {};
  std::snprintf(tag.data(), tag.size(), "%d-%08x%08x", static_cast<int>(::getpid()), random(), random());
  return tag.data();
}

Error cannot_write(const Error& error, const std::string& many, const std::string& folder,
                   const std::string& cache_flags) {
  if (error.code == ErrorCode::kCancelled) return error;
  return Error{ErrorCode::kUnavailable, "cannot write the cache of " + many + " in " + folder + ": " + error.message +
                                            "; make room or give write access there, or name another folder with " +
                                            cache_flags};
}

Error volume_failed(const Error& error, const std::string& piece) {
  return Error{ErrorCode::kUnavailable,
               piece + ": " + error.message +
                   "; repair the volume or the file's permissions and start again: what is read "
                   "already is kept"};
}

Error stopped(const std::string& many, const std::string& parts_folder) {
  std::string message = "stopped while " + many + " were read";
  if (!parts_folder.empty())
    message += "; what is read is kept in " + parts_folder + ", and the next start continues from it";
  return Error{ErrorCode::kCancelled, message};
}

Error nothing_read(const std::string& summary, const std::vector<SkippedFile>& skipped) {
  std::string reasons;
  for (size_t i = 0; i < std::min(skipped.size(), kReasonsShown); ++i) {
    reasons += "\n  " + skipped[i].file + ": " + skipped[i].reason;
  }
  if (skipped.size() > kReasonsShown) reasons += "\n  and " + std::to_string(skipped.size() - kReasonsShown) + " more";
  if (skipped.empty()) return Error{ErrorCode::kInvalid, "there is nothing in " + summary};
  return Error{ErrorCode::kInvalid, "none of " + summary + " could be read:" + reasons};
}

}  // namespace lockstep::preparation
