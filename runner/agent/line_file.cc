#include "runner/agent/line_file.h"

namespace lockstep {

Result<LineFile> LineFile::open(FileSystem& fs, const std::string& path) {
  TRY_ASSIGN(const FileHandle opened, fs.open_for_read(path));
  LineFile file(path, OpenFile(fs, opened));
  const Result<FileInfo> info = fs.fstat(opened);
  if (!info.ok()) return info.error().with_context(path);
  if (info->kind != FileKind::kFile) return invalid(path + " is no plain file");
  return file;
}

bool LineFile::is_replaced() const {
  const Result<FileInfo> ours = file_.fs().fstat(file_.handle());
  const Result<FileInfo> there = file_.fs().stat(path_);
  return !ours.ok() || !there.ok() || ours->identity != there->identity || ours->bytes < offset_;
}

Status LineFile::read(uint64_t bytes_max, const LineConsumer& consumer) {
  std::string piece(kFileLineMax, '\0');
  for (uint64_t bytes = 0; bytes < bytes_max;) {
    const Result<size_t> got = file_.fs().read_at(file_.handle(), offset_, piece.data(), piece.size());
    if (!got.ok()) return got.error().with_context(path_);
    std::string_view rest(piece.data(), *got);
    for (size_t end = rest.find('\n'); end != std::string_view::npos; end = rest.find('\n')) {
      is_skipping_ ? consumer.too_long() : consumer.line(rest.substr(0, end));
      is_skipping_ = false;
      rest.remove_prefix(end + 1);
    }
    const bool is_whole_piece = rest.size() == piece.size();
    if (is_whole_piece) {  // no line ends here
      is_skipping_ = true;
      rest = {};
    }
    const uint64_t passed_on = *got - rest.size();
    offset_ += passed_on;
    bytes += passed_on;
    is_behind_ = passed_on > 0;
    if (!is_behind_) return {};
  }
  return {};
}

}  // namespace lockstep
