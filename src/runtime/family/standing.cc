#include "runtime/family/standing.h"

#include <linux/capability.h>
#include <linux/securebits.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include <array>

#include "os/os.h"

namespace bypass::runtime {

namespace {

constexpr std::uint64_t bit(int capability) {
  return std::uint64_t{1} << capability;
}

bool has(std::uint64_t set, int capability) {
  return (set & bit(capability)) != 0;
}

Standing::Ids ids_by(long number) {
  Standing::Ids ids;
  os::call(number, os::address(&ids.real), os::address(&ids.effective), os::address(&ids.saved));
  return ids;
}

using CapabilityWords = std::array<__user_cap_data_struct, _LINUX_CAPABILITY_U32S_3>;

/// Calls SYS_capget or SYS_capset, for the calling thread alone. False: refused.
bool capabilities(long number, CapabilityWords& data) {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  return os::call(number, os::address(&header), os::address(data.data())) == 0;
}

void read_capabilities(Standing& standing) {
  CapabilityWords data{};
  (void)capabilities(SYS_capget, data);
  standing.permitted = std::uint64_t{data[1].permitted} << 32 | data[0].permitted;
  standing.capable = std::uint64_t{data[1].effective} << 32 | data[0].effective;
}

/// The standing as the test sees it: identities that the process can take at will all become the same.
Standing reachable(Standing standing) {
  const bool any_user = may_change_user(standing), traces = has(standing.permitted, CAP_SYS_PTRACE);
  if (any_user || traces) standing.users = {};
  if (has(standing.permitted, CAP_SETGID) || traces) standing.groups = {};
  // With seteuid() a process can go back to its saved user.
  if (standing.users.saved == standing.users.real) standing.users.effective = standing.users.real;
  if (standing.groups.saved == standing.groups.real) standing.groups.effective = standing.groups.real;
  standing.capable = 0;
  return standing;
}

/// See capabilities(7), "Effect of user ID changes on capabilities": no capability is left when no identity is root's
/// any more.
void drop_capabilities_of_root(const Standing& before, Standing& after) {
  const auto any_root = [](const Standing::Ids& ids) { return ids.real == 0 || ids.effective == 0 || ids.saved == 0; };
  const long bits = os::call(SYS_prctl, PR_GET_SECUREBITS);
  const bool keeps = bits > 0 && (bits & (SECBIT_KEEP_CAPS | SECBIT_NO_SETUID_FIXUP)) != 0;
  if (any_root(before.users) && !any_root(after.users) && !keeps) after.permitted = 0;
}

bool is_one_of(std::uint32_t id, const Standing::Ids& ids) {
  return id == kSameId || id == ids.real || id == ids.effective || id == ids.saved;
}

/// False: the kernel refuses the ids.
bool set_ids(Standing::Ids& ids, const Standing::Ids& wanted, bool any) {
  const bool own = is_one_of(wanted.real, ids) && is_one_of(wanted.effective, ids) && is_one_of(wanted.saved, ids);
  if (!own && !any) return false;
  if (wanted.real != kSameId) ids.real = wanted.real;
  if (wanted.effective != kSameId) ids.effective = wanted.effective;
  if (wanted.saved != kSameId) ids.saved = wanted.saved;
  return true;
}

/// setreuid(2): the saved id is set to the effective one if the real id is set, or if the effective id is set to
/// another value than the real one.
Standing::Ids both(const Standing::Ids& ids, std::uint32_t real, std::uint32_t effective) {
  const bool saves = real != kSameId || (effective != kSameId && effective != ids.real);
  const std::uint32_t after = effective != kSameId ? effective : ids.effective;
  return {real, effective, saves ? after : kSameId};
}

/// Makes the capabilities in `raised` effective for this thread, or not effective.
void set_effective(std::uint64_t raised, bool on) {
  CapabilityWords data{};
  if (!capabilities(SYS_capget, data)) return;
  const std::array<std::uint32_t, 2> words{static_cast<std::uint32_t>(raised),
                                           static_cast<std::uint32_t>(raised >> 32)};
  for (std::size_t i = 0; i < words.size(); i++)
    data[i].effective = on ? data[i].effective | words[i] : data[i].effective & ~words[i];
  (void)capabilities(SYS_capset, data);
}

bool is_root_effectively() {
  return os::call(SYS_geteuid) == 0;
}

}  // namespace

PermittedRights::PermittedRights() {
  Standing now;
  read_capabilities(now);
  aside_ = now.permitted & ~now.capable;
  was_root_ = is_root_effectively();
  if (aside_ != 0) set_effective(aside_, true);
}

// Another thread may have called seteuid() meanwhile, which libc does in each thread. The kernel has then made no
// capability effective, or all of them, if the user became root. That must stay: this raises nothing.
PermittedRights::~PermittedRights() {
  const bool became_root = !was_root_ && is_root_effectively();
  if (aside_ != 0 && !became_root) set_effective(aside_, false);
}

Standing Standing::now() {
  Standing standing;
  standing.users = ids_by(SYS_getresuid);
  standing.groups = ids_by(SYS_getresgid);
  read_capabilities(standing);
  struct stat about {};
  if (os::call(SYS_stat, os::address("/proc/self/ns/user"), os::address(&about)) == 0)
    standing.user_namespace = about.st_ino;
  return standing;
}

bool may_share(const Standing& one, const Standing& other) {
  const Standing a = reachable(one), b = reachable(other);
  return a.users == b.users && a.groups == b.groups && a.permitted == b.permitted &&
         a.user_namespace == b.user_namespace;
}

bool may_change_user(const Standing& standing) {
  return has(standing.permitted, CAP_SETUID);
}

Standing after_setresuid(Standing standing, const Standing::Ids& users) {
  const Standing before = standing;
  if (set_ids(standing.users, users, has(before.capable, CAP_SETUID))) drop_capabilities_of_root(before, standing);
  return standing;
}

Standing after_setresgid(Standing standing, const Standing::Ids& groups) {
  (void)set_ids(standing.groups, groups, has(standing.capable, CAP_SETGID));
  return standing;
}

Standing after_setuid(Standing standing, std::uint32_t user) {
  const bool all = has(standing.capable, CAP_SETUID);
  return after_setresuid(standing, all ? Standing::Ids{user, user, user} : Standing::Ids{kSameId, user, kSameId});
}

Standing after_setgid(Standing standing, std::uint32_t group) {
  const bool all = has(standing.capable, CAP_SETGID);
  return after_setresgid(standing, all ? Standing::Ids{group, group, group} : Standing::Ids{kSameId, group, kSameId});
}

Standing after_setreuid(Standing standing, std::uint32_t real, std::uint32_t effective) {
  return after_setresuid(standing, both(standing.users, real, effective));
}

Standing after_setregid(Standing standing, std::uint32_t real, std::uint32_t effective) {
  return after_setresgid(standing, both(standing.groups, real, effective));
}

Standing after_capset(Standing standing, std::uint64_t permitted) {
  standing.permitted &= permitted;
  return standing;
}

Standing after_new_user_namespace(Standing standing) {
  standing.user_namespace = UINT64_MAX;  // no inode's
  return standing;
}

}  // namespace bypass::runtime
