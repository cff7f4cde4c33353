# DPDK as it is installed here: which of its drivers go into which plugin, and what each archive says of itself
# (PMD_INFO_STRING). Debian builds the archives position-independent.
set(BYPASS_DPDK_EXTRA_PMDS "" CACHE STRING
  "Further drivers of DPDK's for libbypass-cards.so, by the names of their archives: 'net_bond;net_pcap'")

find_package(PkgConfig REQUIRED)
pkg_check_modules(DPDK libdpdk>=22.11)
set(BYPASS_DPDK_ARCHIVES "")
if(DPDK_FOUND)
  find_library(rte_eal_archive NAMES librte_eal.a PATHS ${DPDK_LIBRARY_DIRS} ${DPDK_LIBDIR} REQUIRED)
  cmake_path(GET rte_eal_archive PARENT_PATH BYPASS_DPDK_ARCHIVES)
endif()

# Of vhost: and virtio:, which every user of a wire loads.
set(BYPASS_WIRE_DRIVERS net_vhost net_virtio)
# Of pci: and dpdk:, in libbypass-cards.so. Azure's netvsc hangs on a bus of its own (vmbus), and vdev_netvsc and failsafe
# look for their cards on PCI themselves: no port names them so far, and they are left out. What machines of data centres and clouds have, beside the wires' own.
set(BYPASS_CARD_DRIVERS ${BYPASS_WIRE_DRIVERS}
  net_af_packet net_af_xdp net_memif net_null net_ring net_tap
  net_atlantic net_avp net_axgbe net_bnxt net_cxgbe net_e1000 net_ena net_enic net_fm10k net_gve net_hinic net_hns3
  net_i40e net_iavf net_ice net_idpf net_igc net_ionic net_ixgbe net_mlx4 net_mlx5 net_nfp net_ngbe net_qede
  net_sfc net_txgbe net_vmxnet3)
# Registered by constructors, so every object of these is needed, too.
set(BYPASS_DPDK_REGISTERED mempool_ring bus_vdev bus_pci)
set(BYPASS_CARD_REGISTERED ${BYPASS_DPDK_REGISTERED} bus_auxiliary)

# What a driver needs beside DPDK and libc: "archive library package".
set(BYPASS_DRIVER_NEEDS
  "net_pcap pcap libpcap-dev" "net_softnic pcap libpcap-dev" "net_bnx2x z zlib1g-dev" "net_af_xdp xdp libxdp-dev"
  "net_af_xdp bpf libbpf-dev")

# The archives' names of all drivers of network cards that are installed.
function(bypass_installed_drivers out)
  file(GLOB all RELATIVE ${BYPASS_DPDK_ARCHIVES} ${BYPASS_DPDK_ARCHIVES}/librte_net_*.a)
  list(TRANSFORM all REPLACE "^librte_(.+)\\.a$" "\\1")
  set(${out} "${all}" PARENT_SCOPE)
endfunction()

# What this DPDK has of the drivers above, and those that were asked for by name, which it must have.
if(BYPASS_DPDK_ARCHIVES)
  bypass_installed_drivers(installed)
  foreach(driver IN LISTS BYPASS_DPDK_EXTRA_PMDS)
    if(NOT driver IN_LIST installed)
      list(JOIN installed " " names)
      message(FATAL_ERROR "BYPASS_DPDK_EXTRA_PMDS: there is no ${BYPASS_DPDK_ARCHIVES}/librte_${driver}.a; "
        "DPDK ${DPDK_VERSION} has here: ${names}")
    endif()
  endforeach()
  foreach(driver IN LISTS BYPASS_CARD_DRIVERS)
    if(NOT driver IN_LIST installed)
      message(STATUS "DPDK ${DPDK_VERSION} has no ${driver} here: libbypass-cards.so goes without")
      list(REMOVE_ITEM BYPASS_CARD_DRIVERS ${driver})
    endif()
  endforeach()
  list(APPEND BYPASS_CARD_DRIVERS ${BYPASS_DPDK_EXTRA_PMDS})
  list(REMOVE_DUPLICATES BYPASS_CARD_DRIVERS)
endif()

# Sets OUT to the text of librte_ARCHIVE.a's PMD_INFO_STRINGs, a list of JSON objects.
function(bypass_driver_infos archive out)
  file(STRINGS ${BYPASS_DPDK_ARCHIVES}/librte_${archive}.a infos REGEX "^PMD_INFO_STRING= ")
  list(TRANSFORM infos REPLACE "^PMD_INFO_STRING= " "")
  set(${out} "${infos}" PARENT_SCOPE)
endfunction()

# card_drivers.inc: which driver is made for which card, of every archive that is installed.
function(bypass_write_card_table file)
  set(drivers "")
  set(ids "")
  set(place 0)
  if(BYPASS_DPDK_ARCHIVES)
    bypass_installed_drivers(all)
    foreach(archive IN LISTS all)
      set(linked false)
      if(archive IN_LIST BYPASS_CARD_DRIVERS)
        set(linked true)
      endif()
      bypass_driver_infos(${archive} infos)
      foreach(info IN LISTS infos)
        string(REGEX MATCH "\"pci_ids\": \\[(\\[.*\\])\\]" found "${info}")
        if(NOT found)
          continue()
        endif()
        string(REGEX REPLACE "\\[([0-9]+), ([0-9]+), [0-9]+, [0-9]+\\](, )?" "{\\1, \\2, ${place}}, "
          numbers "${CMAKE_MATCH_1}")
        string(JSON name GET "${info}" name)
        string(JSON kernel ERROR_VARIABLE none GET "${info}" kmod)
        if(none)
          set(kernel "")
        endif()
        string(APPEND drivers "    {\"${name}\", \"${archive}\", ${linked}, \"${kernel}\"},\n")
        string(APPEND ids "    ${numbers}\n")
        math(EXPR place "${place} + 1")
      endforeach()
    endforeach()
  endif()
  set(text "constexpr std::string_view kDpdkVersion = \"${DPDK_VERSION}\";\n")
  if(drivers)
    string(APPEND text "constexpr CardDriver kDrivers[] = {\n${drivers}};\nconstexpr CardId kIds[] = {\n${ids}};\n")
  else()
    string(APPEND text "constexpr std::array<CardDriver, 0> kDrivers{};\nconstexpr std::array<CardId, 0> kIds{};\n")
  endif()
  file(CONFIGURE OUTPUT ${file} CONTENT "${text}" @ONLY)
endfunction()

# A source for the plugin of these drivers (backends/dpdk/drivers.h): the names of those that a port names itself (dpdk:net_ring0), and of those that find a card.
function(bypass_write_driver_names file archives)
  set(buses "")
  set(closed "")
  # No device of them is asked for, and their scans would try drivers on the machine's own.
  if("net_mlx5" IN_LIST archives)
    string(APPEND closed "\"auxiliary:\", ")
  endif()
  if("net_netvsc" IN_LIST archives)
    string(APPEND closed "\"vmbus:00000000-0000-0000-0000-000000000000\"")
  endif()
  if(closed)
    set(buses "constexpr std::string_view kClosed[] = {${closed}};\n")
    set(closed kClosed)
  endif()
  set(virtual "")
  set(cards "")
  foreach(archive IN LISTS archives)
    bypass_driver_infos(${archive} infos)
    foreach(info IN LISTS infos)
      string(JSON name GET "${info}" name)
      if(info MATCHES "\"pci_ids\": \\[\\[")
        string(REGEX REPLACE "^net_" "" short ${archive})
        list(APPEND cards ${short})
      elseif(name MATCHES "^net_" AND NOT info MATCHES "uio_hv_generic")
        list(APPEND virtual ${name})
      endif()
    endforeach()
  endforeach()
  list(REMOVE_DUPLICATES cards)
  list(JOIN cards " " cards)
  list(APPEND virtual virtio_user)  # an older name of net_virtio_user's
  list(TRANSFORM virtual REPLACE "(.+)" "\"\\1\"")
  list(JOIN virtual ", " virtual)
  file(CONFIGURE OUTPUT ${file} CONTENT "#include \"backends/dpdk/drivers.h\"

namespace bypass::dpdk {
namespace {

constexpr std::string_view kVirtual[] = {${virtual}};
${buses}
}  // namespace

std::span<const std::string_view> virtual_drivers() {
  return kVirtual;
}

std::string_view card_drivers() {
  return \"${cards}\";
}

std::span<const std::string_view> closed_buses() {
  return {${closed}};
}

}  // namespace bypass::dpdk
" @ONLY)
endfunction()

# verbs_calls.inc: X(name) for each function of libibverbs, libmlx4 and libmlx5 that the archives call.
function(bypass_write_verbs_calls file)
  list(TRANSFORM ARGN REPLACE "(.+)" "${BYPASS_DPDK_ARCHIVES}/librte_\\1.a" OUTPUT_VARIABLE archives)
  execute_process(COMMAND ${CMAKE_NM} -u ${archives} OUTPUT_VARIABLE wanted ERROR_QUIET COMMAND_ERROR_IS_FATAL ANY)
  execute_process(COMMAND ${CMAKE_NM} --defined-only ${archives} OUTPUT_VARIABLE own ERROR_QUIET
    COMMAND_ERROR_IS_FATAL ANY)
  string(REGEX MATCHALL " U _?(ibv|mlx4dv|mlx5dv)_[a-z0-9_]+" names "${wanted}")
  list(TRANSFORM names REPLACE " U " "")
  list(REMOVE_DUPLICATES names)
  list(SORT names)
  set(text "")
  foreach(name IN LISTS names)
    if(NOT own MATCHES " [A-Za-z] ${name}\n")
      string(APPEND text "X(${name})\n")
    endif()
  endforeach()
  file(CONFIGURE OUTPUT ${file} CONTENT "${text}" @ONLY)
endfunction()
