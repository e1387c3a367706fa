# SPDX-License-Identifier: Apache-2.0
# Finds NCCL: a config package first, else nccl.h and libnccl below NCCL_ROOT, NCCL_HOME or the CUDA
# toolkit. Defines NCCL::NCCL, NCCL_VERSION (of the header), NCCL_LIBRARY_VERSION (of the library's
# file name, if it has one), NCCL_INCLUDE_DIR and NCCL_LIBRARY.
if(NOT TARGET NCCL::NCCL)
  find_package(NCCL CONFIG QUIET)
endif()
set(nccl_roots ${NCCL_ROOT} $ENV{NCCL_ROOT} $ENV{NCCL_HOME} ${CUDAToolkit_TARGET_DIR} ${CUDAToolkit_BIN_DIR}/..
    /usr/local/cuda)
find_path(NCCL_INCLUDE_DIR nccl.h HINTS ${nccl_roots} PATH_SUFFIXES include)
# The library beside the header comes first: two versions on one machine are common.
get_filename_component(nccl_prefix "${NCCL_INCLUDE_DIR}" DIRECTORY)
find_library(NCCL_LIBRARY NAMES nccl libnccl.so.2 HINTS ${nccl_prefix} ${nccl_roots}
  PATH_SUFFIXES lib lib64 lib/${CMAKE_LIBRARY_ARCHITECTURE})
mark_as_advanced(NCCL_INCLUDE_DIR NCCL_LIBRARY)

if(NCCL_INCLUDE_DIR)
  file(STRINGS ${NCCL_INCLUDE_DIR}/nccl.h nccl_lines REGEX "^#define NCCL_(MAJOR|MINOR|PATCH) ")
  string(REGEX REPLACE ".*NCCL_MAJOR ([0-9]+).*NCCL_MINOR ([0-9]+).*NCCL_PATCH ([0-9]+).*" "\\1.\\2.\\3"
    NCCL_VERSION "${nccl_lines}")
endif()
if(NCCL_LIBRARY)
  file(REAL_PATH ${NCCL_LIBRARY} nccl_real)
  if(nccl_real MATCHES "\\.so\\.([0-9]+\\.[0-9]+\\.[0-9]+)$")
    set(NCCL_LIBRARY_VERSION ${CMAKE_MATCH_1})
    if(NCCL_VERSION AND NOT NCCL_LIBRARY_VERSION VERSION_EQUAL NCCL_VERSION)
      message(WARNING "nccl.h is ${NCCL_VERSION}, ${nccl_real} is ${NCCL_LIBRARY_VERSION}; set NCCL_ROOT")
    endif()
  endif()
endif()

include(FindPackageHandleStandardArgs)
if(TARGET NCCL::NCCL AND NOT NCCL_LIBRARY)  # a config package in an unusual place
  set(NCCL_LIBRARY NCCL::NCCL)
endif()
find_package_handle_standard_args(NCCL REQUIRED_VARS NCCL_LIBRARY NCCL_INCLUDE_DIR
  VERSION_VAR NCCL_VERSION)
if(NCCL_FOUND AND NOT TARGET NCCL::NCCL)
  add_library(NCCL::NCCL UNKNOWN IMPORTED)
  set_target_properties(NCCL::NCCL PROPERTIES IMPORTED_LOCATION ${NCCL_LIBRARY}
    INTERFACE_INCLUDE_DIRECTORIES ${NCCL_INCLUDE_DIR})
endif()
