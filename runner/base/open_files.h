// How many files and sockets this process may have open. Threads: any. Errors: none; the limit stays as it was.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace lockstep {

// Raises the soft limit (1024 in most containers) to the hard one. A group of W ranks takes W - 1 sockets of each rank,
// and a coordinator one for each node.
void raise_open_files_limit();

// What to add to the text of a failure: who is at the limit, and how to raise it. Empty when neither `failure` says
// that no file can be opened (EMFILE, ENFILE), nor `needed` more than are open now would pass the limit.
std::string open_files_hint(std::string_view failure, int64_t needed = 0);

}  // namespace lockstep
