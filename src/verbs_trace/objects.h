// Names for what verbs return pointers to: qp 0x11, cq 2, mr 1. A name is given when the object is made, and ends with
// it.
#pragma once

#include <infiniband/verbs.h>

#include <string>
#include <string_view>

namespace bypass::verbs_trace {

/// The next free name of that kind. A queue pair is named by its number.
std::string new_name(const void* object, std::string_view what);
/// "none" for null, and the address for an object that no traced call has made.
[[nodiscard]] std::string name_of(const void* object);
/// Empty: it has none.
std::string take_name(const void* object);
void put_name_back(const void* object, std::string name);

}  // namespace bypass::verbs_trace
