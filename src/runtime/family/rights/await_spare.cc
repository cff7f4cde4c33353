#include "runtime/family/rights/await_spare.h"

#include "os/os.h"
#include "runtime/family/rights/spare.h"

namespace bypass::runtime {

namespace {

/// Waits for a driver that is still starting or ending, until it serves or has gone.
Driving await_driving() {
  constexpr timespec kPause{0, 5'000'000};
  for (int i = 0; i < 1000; i++) {
    if (spare::takes_members()) return Driving::kServes;
    if (!spare::is_driven()) return Driving::kNone;
    os::call(SYS_nanosleep, os::address(&kPause), 0);
  }
  return Driving::kNeither;
}

/// Waits until the process that copies into the spare has settled there. If that process was killed before it had
/// settled, or has failed, the spare holds no family: the next process copies again.
void await_copy(arena::Spare& spare) {
  constexpr timespec kPause{0, 1'000'000};
  for (int i = 0; spare.filled && i < 5000; i++) {
    const bool copies = spare::is_being_copied();
    const std::uint32_t made = arena::made_in(spare::descriptor());
    if (made == arena::Spare::kSettled || made == arena::Spare::kDriven) return;
    if (!copies || made == arena::Spare::kAbandoned) spare.filled = false;
    if (spare.filled) os::call(SYS_nanosleep, os::address(&kPause), 0);
  }
}

}  // namespace

Driving await_spare(arena::Spare& spare) {
  const Driving driving = await_driving();
  if (driving == Driving::kNone) await_copy(spare);
  return driving;
}

}  // namespace bypass::runtime
