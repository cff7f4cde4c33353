// Small text helpers of the configuration: splitting, numbers, sizes, the nearest match of a mistyped word.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace bypass::runtime {

std::string_view trim(std::string_view text);

/// Parts between separators, empty ones included; "" has one empty part.
std::vector<std::string_view> split(std::string_view text, char separator);

/// Parts between runs of spaces and tabs, none empty.
std::vector<std::string_view> split_words(std::string_view text);

/// Parses a whole decimal number with nothing after it.
std::optional<std::int64_t> parse_number(std::string_view text);

/// A number of bytes with an optional K, M, G or T (powers of 1024; "4M", "4MiB", "4MB" are the same).
std::optional<std::int64_t> parse_size(std::string_view text);

/// The candidate that `word` was probably meant to be; empty if none is near (a third of the letters may differ).
std::string_view nearest(std::string_view word, const std::vector<std::string_view>& candidates);

}  // namespace bypass::runtime
