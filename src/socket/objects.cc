#include "socket/objects.h"

#include <new>

namespace bypass::socket {

Objects* objects = nullptr;

bool prepare_objects(Shard& shard) {
  if (objects != nullptr) return true;
  Memory& memory = *shard.context().memory;
  void* place = memory.allocate(sizeof(Objects));
  if (place == nullptr) return false;
  objects = new (place) Objects(memory);
  return true;
}

}  // namespace bypass::socket
