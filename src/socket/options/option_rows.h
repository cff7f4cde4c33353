// The rows of the option table, by level. option_table.cc searches them; option_kinds.cc lists all other options.
// Tests: tests/socket/option_table_test.cc.
#pragma once

#include <span>

#include "socket/options/options.h"

namespace bypass::socket::option {

[[nodiscard]] std::span<const OptionRow> socket_level_rows();
[[nodiscard]] std::span<const OptionRow> tcp_level_rows();
/// Of IPPROTO_IP and of IPPROTO_IPV6.
[[nodiscard]] std::span<const OptionRow> ip_level_rows();

}  // namespace bypass::socket::option
