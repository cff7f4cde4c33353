// Standing: what the kernel lets a process do to other processes, as far as shared memory is concerned.
//
// Two processes may share memory if each could do to the other, by the kernel's rules (ptrace(2), "Ptrace access mode
// checking"), what it can do by the memory. Rights that a process can get back count as its rights: with CAP_SETUID in
// its permitted set it may become any user. So seteuid(), and setgid() before setuid(), change nothing. The last step
// of giving root up does.
#pragma once

#include <cstdint>
#include <optional>

namespace bypass::runtime {

struct Standing {
  struct Ids {
    std::uint32_t real = 0, effective = 0, saved = 0;
    bool operator==(const Ids&) const = default;
  };
  Ids users, groups;
  std::uint64_t permitted = 0, capable = 0;  // capabilities(7): the permitted and the effective set, bit n capability n
  std::uint64_t user_namespace = 0;          // the namespace's inode; 0: not known

  /// The standing of this thread, by some system calls.
  [[nodiscard]] static Standing now();
};

/// Whether two processes with these standings may share memory.
[[nodiscard]] bool may_share(const Standing& one, const Standing& other);
/// Whether a process with this standing may become any user (CAP_SETUID), and make children that do.
[[nodiscard]] bool may_change_user(const Standing& standing);

/// Stands in a call for a user or group that stays as it is.
inline constexpr std::uint32_t kSameId = UINT32_MAX;

// The standing after a call, if the kernel allows the call; unchanged where it is clear that the kernel will not.
[[nodiscard]] Standing after_setuid(Standing standing, std::uint32_t user);
[[nodiscard]] Standing after_setgid(Standing standing, std::uint32_t group);
[[nodiscard]] Standing after_setresuid(Standing standing, const Standing::Ids& users);
[[nodiscard]] Standing after_setresgid(Standing standing, const Standing::Ids& groups);
[[nodiscard]] Standing after_setreuid(Standing standing, std::uint32_t real, std::uint32_t effective);
[[nodiscard]] Standing after_setregid(Standing standing, std::uint32_t real, std::uint32_t effective);
[[nodiscard]] Standing after_capset(Standing standing, std::uint64_t permitted);
/// In a new user namespace, its own or another one.
[[nodiscard]] Standing after_new_user_namespace(Standing standing);

/// While it lives, all permitted capabilities of the thread are effective. So a port can be opened for a program that
/// has put capabilities aside for a while, by seteuid() or capset(). Two system calls, and two more if some were not
/// effective.
class PermittedRights {
 public:
  PermittedRights();
  ~PermittedRights();
  PermittedRights(const PermittedRights&) = delete;
  PermittedRights& operator=(const PermittedRights&) = delete;

 private:
  std::uint64_t aside_ = 0;  // what was permitted and not effective
  bool was_root_ = false;    // the effective user was root
};

}  // namespace bypass::runtime
