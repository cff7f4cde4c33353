// An explicit-state checker: every state that a world can reach, each once, by the world's own code.
//
// A World is copied, and says what can happen in it:
//   template <typename F> void actions(F&& take)   take(name, action) for everything that may happen now
//   const char* violated() const                   null while all that must hold does
//   bool ended() const                             nothing is left to do
//   void serialize(Digester&) const                all that makes two worlds different
//
// Reported: a state in which something is violated, with the way there; or a state from which no way leads to an end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>
#include <unordered_map>
#include <vector>

namespace bypass::fastpath::test {

/// 128 bits of a hash of what is added. They tell states apart.
class Digester {
 public:
  struct Digest {
    std::uint64_t a, b;
    bool operator==(const Digest&) const = default;
  };
  void add(const void* bytes, std::size_t n) {
    const auto* at = static_cast<const unsigned char*>(bytes);
    for (; n >= 8; n -= 8, at += 8) {
      std::uint64_t word;
      std::memcpy(&word, at, 8);
      mix(word);
    }
    std::uint64_t last = n;
    for (std::size_t i = 0; i < n; i++) last = last << 8 | at[i];
    mix(last);
  }
  template <typename T>
  void add(const T& value) {
    static_assert(std::has_unique_object_representations_v<T>, "padding would make equal states different");
    add(&value, sizeof value);
  }
  [[nodiscard]] Digest digest() const { return digest_; }

 private:
  void mix(std::uint64_t word) {
    digest_.a = (digest_.a ^ word) * 0x9e3779b97f4a7c15;
    digest_.a ^= digest_.a >> 29;
    digest_.b = (digest_.b + word) * 0xbf58476d1ce4e5b9;
    digest_.b ^= digest_.b >> 32;
  }
  Digest digest_{0x243f6a8885a308d3, 0x13198a2e03707344};
};

struct Outcome {
  std::size_t states = 0;
  std::size_t endings = 0;
  std::size_t stuck = 0;  // states from which no end can be reached
  const char* violated = nullptr;
  std::string way;        // the way to the violation, or to a stuck state
  bool complete = false;  // all states have been seen
  [[nodiscard]] bool good() const { return complete && violated == nullptr && stuck == 0 && endings != 0; }
};

template <typename World>
class Checker {
 public:
  explicit Checker(std::size_t most_states) : most_(most_states) {}

  Outcome explore(const World& start) {
    visit(start, 0, "");
    while (!stack_.empty() && out_.violated == nullptr && states_.size() < most_) step();
    out_.states = states_.size();
    out_.complete = stack_.empty();
    if (out_.complete) find_stuck();
    return out_;
  }

 private:
  struct Hash {
    std::size_t operator()(const Digester::Digest& d) const { return d.a; }
  };
  struct State {
    std::uint32_t from;
    std::uint16_t name;
    bool ended;
  };
  struct Pending {
    World world;
    std::uint32_t index;
  };

  void step() {
    const Pending now = std::move(stack_.back());
    stack_.pop_back();
    const World& world = now.world;
    world.actions([&](const char* name, auto&& action) {
      if (out_.violated != nullptr) return;
      World next = world;
      action(next);
      visit(next, now.index, name);
    });
  }

  void visit(const World& world, std::uint32_t from, const char* name) {
    Digester digester;
    world.serialize(digester);
    const auto [at, fresh] = index_.try_emplace(digester.digest(), static_cast<std::uint32_t>(states_.size()));
    edges_.push_back({from, at->second});
    if (!fresh) return;
    const bool ended = world.ended();
    out_.endings += ended ? 1U : 0U;
    states_.push_back({from, name_of(name), ended});
    if (const char* why = world.violated()) {
      out_.violated = why;
      out_.way = way_to(at->second);
      return;
    }
    stack_.push_back({world, at->second});
  }

  std::uint16_t name_of(const char* name) {
    for (std::size_t i = 0; i < names_.size(); i++)
      if (names_[i] == name) return static_cast<std::uint16_t>(i);
    names_.emplace_back(name);
    return static_cast<std::uint16_t>(names_.size() - 1);
  }

  std::string way_to(std::uint32_t index) const {
    std::string way;
    for (; index != 0; index = states_[index].from) way = names_[states_[index].name] + " " + way;
    return way;
  }

  /// Goes backwards from the ends. States that are not met are stuck.
  void find_stuck() {
    std::vector<std::uint32_t> first(states_.size() + 1, 0), before(edges_.size());
    for (const Edge& edge : edges_) first[edge.to + 1]++;
    for (std::size_t i = 1; i < first.size(); i++) first[i] += first[i - 1];
    std::vector<std::uint32_t> fill(first.begin(), first.end() - 1);
    for (const Edge& edge : edges_) before[fill[edge.to]++] = edge.from;

    std::vector<bool> live(states_.size(), false);
    std::vector<std::uint32_t> work;
    const auto meet = [&](std::uint32_t i) {
      if (live[i]) return;
      live[i] = true;
      work.push_back(i);
    };
    for (std::uint32_t i = 0; i < states_.size(); i++)
      if (states_[i].ended) meet(i);
    while (!work.empty()) {
      const std::uint32_t at = work.back();
      work.pop_back();
      for (std::uint32_t e = first[at]; e < first[at + 1]; e++) meet(before[e]);
    }
    for (std::uint32_t i = 0; i < states_.size(); i++) {
      if (live[i]) continue;
      if (out_.stuck++ == 0) out_.way = way_to(i);
    }
  }

  struct Edge {
    std::uint32_t from, to;
  };
  std::size_t most_;
  std::unordered_map<Digester::Digest, std::uint32_t, Hash> index_;
  std::vector<State> states_;
  std::vector<Edge> edges_;
  std::vector<Pending> stack_;
  std::vector<std::string> names_;
  Outcome out_;
};

}  // namespace bypass::fastpath::test
