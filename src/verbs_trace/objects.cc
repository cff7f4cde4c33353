#include "verbs_trace/objects.h"

#include <map>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "verbs_trace/output.h"

namespace bypass::verbs_trace {

namespace {

struct Names {
  std::mutex mutex;
  std::unordered_map<const void*, std::string> names;
  std::map<std::string, unsigned, std::less<>> counts;
};

Names& names() {
  static auto* const made = new Names;  // never freed, as threads may still call verbs while the process ends
  return *made;
}

}  // namespace

std::string new_name(const void* object, std::string_view what) {
  std::string name(what);
  const std::lock_guard lock(names().mutex);
  if (what == "qp") {
    name += ' ' + hex_text(static_cast<const ibv_qp*>(object)->qp_num);
  } else {
    auto at = names().counts.try_emplace(name, 0).first;
    name += ' ' + std::to_string(++at->second);
  }
  names().names[object] = name;
  return name;
}

std::string name_of(const void* object) {
  if (object == nullptr) return "none";
  const std::lock_guard lock(names().mutex);
  const auto found = names().names.find(object);
  return found != names().names.end() ? found->second : hex_text(reinterpret_cast<std::uintptr_t>(object));
}

std::string take_name(const void* object) {
  const std::lock_guard lock(names().mutex);
  auto taken = names().names.extract(object);
  return taken.empty() ? "" : std::move(taken.mapped());
}

void put_name_back(const void* object, std::string name) {
  const std::lock_guard lock(names().mutex);
  if (!name.empty()) names().names[object] = std::move(name);
}

}  // namespace bypass::verbs_trace
