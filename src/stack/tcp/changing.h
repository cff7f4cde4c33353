// Changing: names the object that a call of the engine changes, for as long as the call is inside.
//
// A process may die in such a call. The process that takes the lock then finds the object named in the arena, and looks
// at it before it goes on (engine.h, current()).
#pragma once

#include "stack/tcp/core.h"

namespace bypass::tcp {

class Changing {
 public:
  Changing(Core& core, void* object) : core_(core) { core_.current = object; }
  ~Changing() { core_.current = nullptr; }
  Changing(const Changing&) = delete;
  Changing& operator=(const Changing&) = delete;

 private:
  Core& core_;
};

}  // namespace bypass::tcp
