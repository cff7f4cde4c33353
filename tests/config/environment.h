// An environment block made of literals, and a configuration parsed from it.
#pragma once

#include <initializer_list>
#include <string>
#include <vector>

#include "config/config.h"
#include "config/config_toml.h"

namespace bypass::runtime {

inline Config from_environment(std::initializer_list<const char*> variables) {
  std::vector<const char*> block(variables);
  block.push_back(nullptr);
  return parse_config(block.data(), nullptr);
}

inline Config from_file(const std::string& text, std::initializer_list<const char*> variables = {}) {
  std::vector<const char*> block(variables);
  block.push_back(nullptr);
  ConfigFile file;
  file.path = "test.toml";
  read_toml(text, file);
  return parse_config(block.data(), &file);
}

/// The messages of all problems, one a line; empty if there are none.
inline std::string messages(const Config& config) {
  std::string out;
  for (const ConfigProblem& problem : config.problems) out += problem.message() + "\n";
  return out;
}

}  // namespace bypass::runtime
