// libibverbs as mlx4's and mlx5's drivers call it. Only who has such a card needs the library, so it is opened when one
// is asked for, not linked. It is the one that libbypass-verbs.so opens, too, and that the program may have.
#pragma once

#include <string>

namespace bypass::dpdk {

/// Opens the libraries unless they are open, and leads the drivers' calls to them. Control thread only. False:
/// `problem` says what is not installed.
bool bind_verbs(std::string& problem);

}  // namespace bypass::dpdk
