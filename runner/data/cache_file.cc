#include "runner/data/cache_file.h"

#include <isa-l/crc.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>

namespace lockstep {

std::string skipped_summary(const std::vector<SkippedFile>& skipped) {
  const SkippedFile& first = skipped.front();
  return std::to_string(skipped.size()) + " files that cannot be read, the first " + first.file + ": " + first.reason;
}

std::vector<std::pair<std::string, std::string>> rows_of_files(const std::string& label,
                                                               const std::vector<SkippedFile>& files, bool show_all) {
  constexpr size_t kRowsShown = 2;
  std::vector<std::pair<std::string, std::string>> rows;
  const size_t shown = show_all ? files.size() : std::min(kRowsShown, files.size());
  for (size_t i = 0; i < shown; ++i) rows.emplace_back(label, files[i].file + ": " + files[i].reason);
  if (shown < files.size()) {
    rows.back().second += " (and " + std::to_string(files.size() - shown) + " more: --verbose)";
  }
  return rows;
}

Result<CacheBytes> map_cache_file(FileSystem& fs, const std::string& path) {
  TRY_ASSIGN(const FileHandle opened, fs.open_for_read(path));
  const OpenFile file(fs, opened);
  const Result<FileInfo> info = fs.fstat(opened);
  if (!info.ok()) return info.error().with_context(path);
  const size_t bytes = info->kind == FileKind::kFile ? info->bytes : 0;
  if (bytes == 0) return CacheBytes{};
  void* mapped = ::mmap(nullptr, bytes, PROT_READ, MAP_SHARED, opened.descriptor, 0);
  if (mapped == MAP_FAILED) return error_of_errno(errno, "mmap", path);
  return CacheBytes{.memory = std::shared_ptr<const void>(
                        mapped, [bytes](const void* at) { ::munmap(const_cast<void*>(at), bytes); }),
                    .bytes = {static_cast<const char*>(mapped), bytes}};
}

std::string skipped_text(const std::vector<SkippedFile>& skipped) {
  Json list = Json::array();
  for (const SkippedFile& file : skipped) list.push_back({file.file, file.reason});
  return dump_line(list);
}

Result<std::vector<SkippedFile>> skipped_files_of(const Json& list) {
  const Error damaged{ErrorCode::kCorrupt, "has a damaged list of skipped files"};
  if (!list.is_array()) return damaged;
  std::vector<SkippedFile> skipped;
  for (const Json& file : list) {
    if (!file.is_array() || file.size() != 2 || !file[0].is_string() || !file[1].is_string()) return damaged;
    skipped.push_back({file[0].get<std::string>(), file[1].get<std::string>()});
  }
  return skipped;
}

uint32_t crc32_of(std::string_view bytes) {
  return ::crc32_gzip_refl(0, reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size());
}

}  // namespace lockstep
