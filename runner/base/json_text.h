// JSON as text, before a document is made of it: how large the document would be, and the members of an object or a
// list. So a text from outside is refused, or read member by member, before it takes memory. Pure; never recursive.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>
#include <vector>

namespace lockstep {

// Of a text that a parser accepts these are upper bounds.
struct JsonSize {
  size_t values = 1;  // with the members of all objects and the entries of all lists; each takes about 100 bytes
  size_t depth = 0;   // of objects and lists within each other
};
JsonSize size_of_json(std::string_view text);

struct JsonMember {
  std::string_view name;  // a member's, as it is written, with its quotes; empty in a list
  std::string_view text;  // the value; not checked beyond its end
};
// The members of an object or the entries of a list, in their order; nullopt when `text` is neither.
std::optional<std::vector<JsonMember>> members_of_json(std::string_view text);

}  // namespace lockstep
