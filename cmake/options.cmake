option(BYPASS_TESTS "Build the tests and benchmarks" ON)
set(BYPASS_SANITIZE "" CACHE STRING "Sanitizers to build with: empty, 'address;undefined' or 'thread'")

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE RelWithDebInfo CACHE STRING "" FORCE)
endif()

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_C_STANDARD 17)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_C_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
# Libraries and programs that a user names lie at the top of the build folder: build/libbypass.so, build/bypass.
set(CMAKE_LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR})
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)

find_program(BYPASS_CCACHE ccache)
if(BYPASS_CCACHE)
  set(CMAKE_C_COMPILER_LAUNCHER ${CMAKE_SOURCE_DIR}/cmake/ccache.sh)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_SOURCE_DIR}/cmake/ccache.sh)
endif()

# Flags of every target of ours: link against bypass_flags.
add_library(bypass_flags INTERFACE)
target_include_directories(bypass_flags INTERFACE ${CMAKE_SOURCE_DIR}/src)
target_compile_options(bypass_flags INTERFACE
  -Wall -Wextra -Werror -Wshadow -Wvla -Wundef
  $<$<COMPILE_LANGUAGE:CXX>:-Wnon-virtual-dtor -Woverloaded-virtual -Wextra-semi>
  -fno-strict-aliasing -fno-omit-frame-pointer -ftls-model=initial-exec)
target_compile_definitions(bypass_flags INTERFACE _GNU_SOURCE)
# The sanitizer builds, and tools/test in a new folder, compile the sources of a library 24 at a time: each source loads the precompiled header anew, which
# is a third of what it takes. So names in unnamed namespaces of one library must differ there, or the source is named in
# bypass_compile_alone(). A build that people work in keeps single files: what one changes is then compiled in a second.
option(BYPASS_UNITY "Compile the sources of a library a few at a time" OFF)
function(bypass_compile_alone)
  set_source_files_properties(${ARGN} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
endfunction()
if(BYPASS_UNITY)
  target_compile_options(bypass_flags INTERFACE -Wno-shadow)  # a name of one source may be hidden in the next
endif()
option(BYPASS_FUZZ "Build the fuzz targets; wants clang" OFF)
if(BYPASS_FUZZ)
  target_compile_options(bypass_flags INTERFACE -Wno-error)  # the warnings are GCC's affair
endif()
foreach(sanitizer IN LISTS BYPASS_SANITIZE)
  target_compile_options(bypass_flags INTERFACE -fsanitize=${sanitizer})
  target_link_options(bypass_flags INTERFACE -fsanitize=${sanitizer})
endforeach()
if("thread" IN_LIST BYPASS_SANITIZE)
  # TSan does not model fences; what they order (the clock's sequence) is in atomics, which it does see.
  target_compile_options(bypass_flags INTERFACE -Wno-tsan)
endif()
if("undefined" IN_LIST BYPASS_SANITIZE)
  target_compile_options(bypass_flags INTERFACE -fno-sanitize-recover=undefined)
endif()

# The data path runs through some twenty short files; libbypass.so and libbypass-softverbs.so, and nothing else, are linked
# from their whole text (an eighth fewer instructions a segment, 30 ns less an RDMA message). Tests link the objects'
# ordinary half.
option(BYPASS_LTO "Optimise libbypass.so and libbypass-softverbs.so across files" ON)
add_library(bypass_lto_flags INTERFACE)
if(BYPASS_LTO AND NOT BYPASS_SANITIZE AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND NOT CMAKE_BUILD_TYPE STREQUAL "Debug")
  target_compile_options(bypass_lto_flags INTERFACE -flto -ffat-lto-objects)
  target_link_options(bypass_flags INTERFACE
    $<IF:$<BOOL:$<TARGET_PROPERTY:BYPASS_LINK_LTO>>,-flto=auto,-fno-lto>)
endif()

# The pure layers throw nothing and ask for no type information.
add_library(bypass_pure_flags INTERFACE)
target_link_libraries(bypass_pure_flags INTERFACE bypass_flags)
target_compile_options(bypass_pure_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-fno-exceptions -fno-rtti>)

# Half of what compiling a source takes is parsing the standard library: it is done once for each kind of target, which
# bypass_std_headers(TARGET KIND) names. The compiler keeps its options in what it precompiles, so the kinds differ in
# these. `plain` has bypass_flags; `lto` has bypass_lto_flags, too; `pure` has both and bypass_pure_flags; `visible` is
# `lto` with names that are seen outside. Sources go on including what they use: clang-tidy and the fuzz build read them
# without it.
option(BYPASS_PRECOMPILE "Precompile the standard library's headers" ON)
function(bypass_std_headers target kind)
  set_target_properties(${target} PROPERTIES UNITY_BUILD ${BYPASS_UNITY} UNITY_BUILD_BATCH_SIZE 24)
  if(BYPASS_PRECOMPILE AND NOT BYPASS_FUZZ)
    target_precompile_headers(${target} REUSE_FROM bypass_std_headers_${kind})
  endif()
endfunction()
if(BYPASS_PRECOMPILE AND NOT BYPASS_FUZZ)
  foreach(kind plain lto pure visible)
    add_library(bypass_std_headers_${kind} OBJECT EXCLUDE_FROM_ALL ${CMAKE_SOURCE_DIR}/cmake/std_headers.cc)
    target_link_libraries(bypass_std_headers_${kind} PRIVATE bypass_flags)
    target_precompile_headers(bypass_std_headers_${kind} PRIVATE
      <algorithm> <array> <atomic> <bit> <cerrno> <charconv> <cstddef> <cstdint> <cstdio> <cstdlib> <cstring> <functional>
      <memory> <mutex> <new> <optional> <span> <string> <string_view> <utility> <vector>)
  endforeach()
  target_link_libraries(bypass_std_headers_lto PRIVATE bypass_lto_flags)
  target_link_libraries(bypass_std_headers_visible PRIVATE bypass_lto_flags)
  target_compile_options(bypass_std_headers_visible PRIVATE -fvisibility=default)
  target_link_libraries(bypass_std_headers_pure PRIVATE bypass_lto_flags bypass_pure_flags)
endif()
