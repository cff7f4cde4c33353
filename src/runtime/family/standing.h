// Standing: what the kernel lets a process do to others, as far as memory that it shares with them is concerned.
//
// Two processes may share memory when each could do to the other by the kernel's leave (ptrace(2), "Ptrace access mode
// checking") what it can do by the memory. What a process can still come back to counts as had: with CAP_SETUID in its
// permitted set it may be any user. So seteuid(), and setgid() before setuid(), change nothing; the last step of
// giving root up does.
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
  std::uint64_t user_namespace = 0;          // its inode; 0: not to be had

  /// This thread's, by some system calls.
  [[nodiscard]] static Standing now();
};

/// Whether two processes of these standings may share memory.
[[nodiscard]] bool may_share(const Standing& one, const Standing& other);
/// Whether such a process may become any user (CAP_SETUID), and make children that do.
[[nodiscard]] bool may_change_user(const Standing& standing);

/// A user or group of a call's that stays as it is.
inline constexpr std::uint32_t kSameId = UINT32_MAX;

// What it will be after a call, should the kernel allow it; as it is where it is seen that the kernel will not.
[[nodiscard]] Standing after_setuid(Standing standing, std::uint32_t user);
[[nodiscard]] Standing after_setgid(Standing standing, std::uint32_t group);
[[nodiscard]] Standing after_setresuid(Standing standing, const Standing::Ids& users);
[[nodiscard]] Standing after_setresgid(Standing standing, const Standing::Ids& groups);
[[nodiscard]] Standing after_setreuid(Standing standing, std::uint32_t real, std::uint32_t effective);
[[nodiscard]] Standing after_setregid(Standing standing, std::uint32_t real, std::uint32_t effective);
[[nodiscard]] Standing after_capset(Standing standing, std::uint64_t permitted);
/// In a user namespace of its own, or another's.
[[nodiscard]] Standing after_new_user_namespace(Standing standing);

/// While it lives, all capabilities that the thread is permitted are effective: a program that has put them aside for
/// a while, by seteuid() or capset(), has a port opened as before. Two system calls, and two more where some were not.
class PermittedRights {
 public:
  PermittedRights();
  ~PermittedRights();
  PermittedRights(const PermittedRights&) = delete;
  PermittedRights& operator=(const PermittedRights&) = delete;

 private:
  std::uint64_t aside_ = 0;  // what was permitted and not effective
  bool was_root_ = false;    // by the effective user
};

}  // namespace bypass::runtime
