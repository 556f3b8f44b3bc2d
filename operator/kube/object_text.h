// Objects and lists of the Kubernetes API: from bytes to documents, however large or deep a user has made them. Pure.
//
// A user may write 1.5 MB into an object. As a document that is up to 40 MB ({},{},…), and 10,000 levels of nesting end
// the stack of who copies it. So an object is read field by field (metadata, spec, status, …), and of a field that is
// too large only the members that are small. In place of what is left out stands a string that says why: the reader of
// the field finds a string where it expects an object or a list, and quotes it in its error. Objects are read for this
// operator alone; it writes none of them back.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "runner/base/json.h"
#include "runner/base/result.h"

namespace lockstep::kube {

inline constexpr size_t kFieldBytesMax = size_t{1} << 20;  // of metadata, of spec, …
// Of all fields but the status together, so that they take at most about 2 MB besides their texts.
inline constexpr size_t kFieldValuesMax = 20'000;
// Only controllers and kubelets write a status. That of a TrainJob of 10,000 pods, each of which was lost, has 80,000
// values.
inline constexpr size_t kStatusBytesMax = size_t{2} << 20;
inline constexpr size_t kStatusValuesMax = 200'000;
// Of the members that are kept of a field that is itself too large, together.
inline constexpr size_t kSmallBytesMax = size_t{64} << 10;
inline constexpr size_t kSmallValuesMax = 2'000;

// `field_bytes_max`: at most kFieldBytesMax. kCorrupt when `text` is no JSON object.
Result<Json> read_object(std::string_view text, size_t field_bytes_max = kFieldBytesMax);

struct ListHead {
  std::string resource_version;
  std::string continuation;  // "": this was the last page
};
// Calls `on_item` for each object of the list, one after the other, so that never more than one of them is a document.
// kCorrupt when `text` is no list of objects.
Result<ListHead> read_list(std::string_view text, const std::function<void(Json)>& on_item,
                           size_t field_bytes_max = kFieldBytesMax);

}  // namespace lockstep::kube
