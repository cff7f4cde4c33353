#include "os/kernel.h"

namespace bypass::socket {

const Kernel* kernel = nullptr;

}  // namespace bypass::socket
