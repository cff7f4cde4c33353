#include "backends/dpdk/eal/verbs_calls.h"

namespace bypass::dpdk {

// None of this plugin's drivers calls libibverbs.
bool bind_verbs(std::string& problem) {
  problem = "this plugin has no driver for cards";
  return false;
}

}  // namespace bypass::dpdk
