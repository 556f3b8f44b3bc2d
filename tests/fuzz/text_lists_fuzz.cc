// Any bytes are either refused with a reason or give texts: as lists of names, JSON lists of texts, JSON lines or
// sequences in FASTA, which the first byte says.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runner/base/check.h"
#include "runner/data/next_line.h"
#include "runner/models/jit/data/text_files.h"
#include "runner/models/protein/data/structure_source.h"
#include "runner/models/protein/design/mpnn_helper_files.h"

namespace {

void check_texts(const lockstep::Result<std::vector<std::string>>& texts) {
  if (!texts.ok()) {
    LOCKSTEP_CHECK(!texts.error().message.empty(), "a refusal says why");
    return;
  }
  for (const std::string& text : *texts) LOCKSTEP_CHECK(!text.empty(), "empty texts are left out");
}

void check_list(std::string_view bytes) {
  for (const std::string& entry : lockstep::entries_of_list(bytes)) {
    LOCKSTEP_CHECK(!entry.empty() && entry.find('\n') == std::string::npos, "an entry is a line");
    LOCKSTEP_CHECK(entry.front() != ' ' && entry.back() != ' ' && entry.back() != '\r',
                   "without white space around it");
    LOCKSTEP_CHECK(entry.find(lockstep::structure_name_in_list(entry)) != std::string::npos, "a name is a part of it");
  }
}

void check_fasta(const std::string& text) {
  const lockstep::Result<std::vector<lockstep::FastaRecord>> records = lockstep::parse_fasta(text, "fuzz");
  if (!records.ok()) {
    LOCKSTEP_CHECK(!records.error().message.empty(), "a refusal says why");
    return;
  }
  LOCKSTEP_CHECK(!records->empty(), "a file without a sequence is refused");
  for (const lockstep::FastaRecord& record : *records) {
    LOCKSTEP_CHECK(record.sequence.find_first_of("\n\r \t") == std::string::npos,
                   "a sequence is its lines, joined without spaces");
    LOCKSTEP_CHECK(record.header.find('\n') == std::string::npos, "a header is a line");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  if (data[0] % 4 == 0) {
    check_list(bytes);
  } else if (data[0] % 4 == 1) {
    check_texts(lockstep::texts_of_json(bytes, "fuzz"));
  } else if (data[0] % 4 == 3) {
    check_fasta(std::string(bytes));
  } else {
    std::vector<std::string> lines;
    while (!bytes.empty()) lines.emplace_back(lockstep::next_line(bytes));
    check_texts(lockstep::texts_of_json_lines(lines));
  }
  return 0;
}
