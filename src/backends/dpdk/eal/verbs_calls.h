// The calls of mlx4's and mlx5's drivers to libibverbs. Only processes with such a card need the library. So it is not
// linked, but opened when a port on such a card is opened. libbypass-verbs.so opens the same library, and the program
// may have it, too.
#pragma once

#include <string>

namespace bypass::dpdk {

/// Opens the libraries unless they are open. From then on the drivers' calls go there. Control thread only. False:
/// `problem` says what is not installed.
bool bind_verbs(std::string& problem);

}  // namespace bypass::dpdk
