// Values of the stats file in words: shared by the tables and by JSON.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "observe/printable.h"
#include "observe/reader.h"

namespace bypass::tool {

using Json = nlohmann::ordered_json;

std::string protocol_text(std::uint8_t protocol);
/// "10.9.0.1:80"; "-" for nothing.
std::string endpoint_text(const IpAddress& address, std::uint16_t port);
/// The text in a record's field, made printable.
template <std::size_t size>
std::string field_text(const std::array<char, size>& field) {
  return observe::printable(field);
}

Json process_json(const observe::Snapshot& process);  // pid, command, …: what each command begins with
Json port_json(const observe::PortRecord& port);
/// Whether the socket counts bytes and has a round-trip time.
bool is_connection(const observe::SocketRecord& socket);
/// Whether the socket's bytes do not go by TCP. Then TCP's round-trip time and windows tell nothing about them.
bool is_beside_tcp(const observe::SocketRecord& socket);
Json socket_json(const observe::SocketRecord& socket);
Json why_json(const observe::WhyRecord& why);
std::vector<std::string> port_addresses(const observe::PortRecord& port);
std::string port_name(const observe::PortRecord& port);

/// Bytes that are not UTF-8, as a setting in the environment may have them, are replaced.
void print_json(const Json& json);
/// Columns as wide as their widest cell; the first row is the heading. Numbers are set to the right.
void print_table(const std::vector<std::vector<std::string>>& rows, const char* indent);
void print_process_line(const observe::Snapshot& process);

}  // namespace bypass::tool
