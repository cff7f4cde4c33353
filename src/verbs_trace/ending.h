// An object that a verb ends. What the trace knows about the object goes before the call, because the object's address
// may be another thread's next object as soon as the call has ended it. If the call fails, the object is known again.
#pragma once

#include <memory>
#include <string>
#include <tuple>
#include <utility>

#include "verbs_trace/objects.h"
#include "verbs_trace/originals.h"

namespace bypass::verbs_trace {

/// `Kept`: which functions of the object the trace has replaced.
template <typename... Kept>
class Ending {
 public:
  explicit Ending(const void* object)
      : object_(object), name_(take_name(object)), taken_{originals<Kept>().take(object)...} {}

  /// Returns the error: 0 says that the object has ended.
  int ends(int error) {
    if (error == 0) return 0;
    put_name_back(object_, std::move(name_));
    (originals<Kept>().put_back(object_, std::move(std::get<std::unique_ptr<Kept>>(taken_))), ...);
    return error;
  }

 private:
  const void* object_;
  std::string name_;
  std::tuple<std::unique_ptr<Kept>...> taken_;
};

}  // namespace bypass::verbs_trace
