// One verb that the program calls: its name, its arguments, its result and its time. A call from within libibverbs or
// from within another verb is not the program's, and is not told.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace bypass::verbs_trace {

/// CLOCK_MONOTONIC, in ns.
[[nodiscard]] std::int64_t now_ns();

class Call {
 public:
  explicit Call(const char* verb);
  ~Call();
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  /// False inside another verb: nothing is told, and arguments need not be described.
  [[nodiscard]] bool is_told() const { return told_; }

  Call& arg(std::string_view name, std::string_view value);
  Call& arg(std::string_view name, std::uint64_t value);
  Call& hex(std::string_view name, std::uint64_t value);

  /// Makes the call itself, whose time is told. errno is afterwards what the call has left there.
  template <typename Body>
  auto make(Body&& body) {
    const Clock running(*this);
    return body();
  }

  /// The call has returned an error number, or 0.
  void returns(int error);
  /// The call has returned a count (ibv_poll_cq, ibv_start_poll).
  void returns_count(int count);
  /// The call has returned an object, or null with an error in errno. `what`: its kind, as in "qp".
  void returns_object(const void* object, std::string_view what);
  /// What the program learns beside the result: completions, numbers.
  void tell(std::string_view name, std::string_view value);
  /// Calls that equal the last one of the thread, in arguments and result, are counted in one line behind it: empty
  /// polls, receive requests that are posted one by one.
  void may_repeat() { repeats_ = true; }

 private:
  /// Runs while the call itself does. It also runs when a thread is cancelled within the call.
  struct Clock {
    explicit Clock(Call& owner);
    ~Clock();
    Clock(const Clock&) = delete;
    Clock& operator=(const Clock&) = delete;
    Call& call;
  };

  const char* verb_;
  bool told_;
  bool failed_ = false;
  bool repeats_ = false;
  std::int64_t began_ = 0, took_ = 0;
  int errno_ = 0;
  std::string arguments_, json_, result_, told_text_, told_json_;
};

}  // namespace bypass::verbs_trace
