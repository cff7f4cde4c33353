#include "stack/counters.h"

#include <iterator>

namespace bypass {
namespace {

constexpr CounterInfo kTable[] = {
#define BYPASS_COUNTER_ROW(name, unit, help) {#name, unit, help},
    BYPASS_STACK_COUNTERS(BYPASS_COUNTER_ROW)
#undef BYPASS_COUNTER_ROW
};
static_assert(sizeof(StackCounters) == sizeof(std::uint64_t) * std::size(kTable), "a row for each field");

}  // namespace

std::span<const CounterInfo> stack_counter_table() {
  return kTable;
}

}  // namespace bypass
