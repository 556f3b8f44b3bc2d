// The form of what the `recommend` tasks write. Links no torch.
#pragma once

namespace lockstep {

// --format jsonl and tsv.
enum class RowFormat { kJsonLines, kTsv };

}  // namespace lockstep
