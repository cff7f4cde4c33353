// The main program as far as it is one of Go's: whether its threads are C's, and where its functions are.
//
// Go's runtime makes system calls by instructions of its own. It needs the names and addresses of its functions itself,
// so they are in every program, also in one without symbols.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string_view>

namespace bypass::preload::raw {

/// Costs a look at the program's headers.
[[nodiscard]] bool is_go_program();

/// Whether its threads are made by libc (cgo). Other threads have no thread-local variables of libc or of ours.
[[nodiscard]] bool has_threads_of_c();

/// Calls `visit` with name and machine code of each function that has one of these names; it returns whether it
/// understands the code. Returns null, or why the functions cannot be found or understood.
using VisitCode = std::function<bool(std::string_view name, std::span<const std::uint8_t> code)>;
[[nodiscard]] const char* visit_functions(std::span<const std::string_view> names, const VisitCode& visit);

}  // namespace bypass::preload::raw
