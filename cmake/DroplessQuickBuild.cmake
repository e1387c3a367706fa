# SPDX-License-Identifier: Apache-2.0
# What makes the build short. Half the time to compile a file of the suite or of the tests goes into
# the same few headers, and much of the rest into optimising code that only prepares and compares.
option(DROPLESS_QUICK_BUILD "Precompiled headers, and -O1 for the suite around what is measured" OFF)

set(dropless_standard_headers <algorithm> <array> <cmath> <cstdint> <cstring> <functional> <limits> <map>
  <memory> <numeric> <optional> <set> <span> <string> <string_view> <vector>)

# dropless_precompile(target HEADERS header...): the standard library's headers and these.
# dropless_precompile(target LIKE other): what was compiled for another target of the same flags.
# Files still name what they use: the build without DROPLESS_QUICK_BUILD must work as well.
function(dropless_precompile target)
  cmake_parse_arguments(arg "" "LIKE" "HEADERS" ${ARGN})
  if(NOT DROPLESS_QUICK_BUILD)
    return()
  endif()
  get_target_property(sources ${target} SOURCES)
  list(FILTER sources INCLUDE REGEX "[.](c|cu)$")
  if(sources)
    set_source_files_properties(${sources} PROPERTIES SKIP_PRECOMPILE_HEADERS ON)
  endif()
  if(arg_LIKE)
    target_precompile_headers(${target} REUSE_FROM ${arg_LIKE})
  else()
    target_precompile_headers(${target} PRIVATE ${dropless_standard_headers} ${arg_HEADERS})
  endif()
  if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
    # False alarm of GCC 12: what it knows of system headers is lost on the way.
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-Wno-stringop-overflow>)
  endif()
endfunction()

# A library of cases, faults or campaigns: nothing in it is timed. Contraction is off, so that
# expectations have the same bits everywhere.
function(dropless_suite_options target)
  target_compile_options(${target} PRIVATE -ffp-contract=off)
  if(DROPLESS_QUICK_BUILD)
    target_compile_options(${target} PRIVATE $<$<CONFIG:Release>:-O1>)
  endif()
endfunction()
