// The functions that an object had before the trace put its own there.
#pragma once

#include <memory>
#include <mutex>
#include <shared_mutex>
#include <unordered_map>
#include <utility>

namespace bypass::verbs_trace {

template <typename Functions>
class Originals {
 public:
  /// False: the object is traced already.
  bool keep(const void* object, const Functions& functions) {
    const std::unique_lock lock(mutex_);
    return kept_.try_emplace(object, std::make_unique<Functions>(functions)).second;
  }
  /// Valid until the object ends.
  [[nodiscard]] const Functions& of(const void* object) const {
    const std::shared_lock lock(mutex_);
    return *kept_.at(object);
  }
  /// Before the object ends: its address may be another object's as soon as it has.
  std::unique_ptr<Functions> take(const void* object) {
    const std::unique_lock lock(mutex_);
    const auto found = kept_.find(object);
    if (found == kept_.end()) return nullptr;
    std::unique_ptr<Functions> taken = std::move(found->second);
    kept_.erase(found);
    return taken;
  }
  /// The object has not ended: the call has failed.
  void put_back(const void* object, std::unique_ptr<Functions> taken) {
    const std::unique_lock lock(mutex_);
    if (taken != nullptr) kept_[object] = std::move(taken);
  }

 private:
  mutable std::shared_mutex mutex_;
  std::unordered_map<const void*, std::unique_ptr<Functions>> kept_;
};

/// One set for each kind of object, never freed: threads may still call verbs while the process ends.
template <typename Functions>
Originals<Functions>& originals() {
  static auto* const made = new Originals<Functions>;
  return *made;
}

/// A function that the device does not have stays null: the program asks for it.
template <typename Function>
void replace(Function*& pointer, Function* own) {
  if (pointer != nullptr) pointer = own;
}

}  // namespace bypass::verbs_trace
