# SPDX-License-Identifier: Apache-2.0
# Finds what the project links. CUDA, NCCL and MPI are optional: AUTO takes them when they work, ON
# fails without them, OFF does not look. What is left out is said in the summary.
#
# Sets DROPLESS_HAVE_CUDA, DROPLESS_HAVE_NCCL, DROPLESS_HAVE_MPI and, for the summary,
# DROPLESS_<X>_REASON; DROPLESS_CUDA_ARCHITECTURES lists the architectures nvcc can build.
set(DROPLESS_CUDA AUTO CACHE STRING "CUDA: AUTO, ON or OFF")
set(DROPLESS_NCCL AUTO CACHE STRING "NCCL: AUTO, ON or OFF")
set(DROPLESS_MPI AUTO CACHE STRING "MPI: AUTO, ON or OFF")
foreach(name CUDA NCCL MPI)
  set_property(CACHE DROPLESS_${name} PROPERTY STRINGS AUTO ON OFF)
  string(TOUPPER "${DROPLESS_${name}}" DROPLESS_${name})
  if(NOT DROPLESS_${name} MATCHES "^(AUTO|ON|OFF)$")
    message(FATAL_ERROR "DROPLESS_${name} is ${DROPLESS_${name}}; it must be AUTO, ON or OFF")
  endif()
  set(DROPLESS_HAVE_${name} FALSE)
  set(DROPLESS_${name}_REASON "DROPLESS_${name}=OFF")
endforeach()

find_package(Threads REQUIRED)
if(DROPLESS_BUILD_TOOL)  # the peer of the benchmarks
  if(NOT DEFINED BLA_VENDOR)
    set(BLA_VENDOR OpenBLAS)
    find_package(BLAS QUIET)
    unset(BLA_VENDOR)
  endif()
  if(NOT BLAS_FOUND)
    find_package(BLAS REQUIRED)
  endif()
endif()

# dropless_missing(name reason): records why an optional dependency is left out; fatal when wanted.
macro(dropless_missing name reason)
  set(DROPLESS_${name}_REASON "${reason}")
  if(DROPLESS_${name} STREQUAL "ON")
    message(FATAL_ERROR "DROPLESS_${name}=ON, but: ${reason}")
  endif()
endmacro()

if(NOT DROPLESS_CUDA STREQUAL "OFF")
  include(DroplessCuda)
endif()

if(NOT DROPLESS_NCCL STREQUAL "OFF")
  if(NOT DROPLESS_HAVE_CUDA)
    dropless_missing(NCCL "needs CUDA")
  else()
    find_package(NCCL QUIET)
    if(NCCL_FOUND)
      set(DROPLESS_HAVE_NCCL TRUE)
    else()
      dropless_missing(NCCL "nccl.h or libnccl not found; set NCCL_ROOT")
    endif()
  endif()
endif()

if(NOT DROPLESS_MPI STREQUAL "OFF")
  find_package(MPI QUIET COMPONENTS C)
  if(MPI_C_FOUND)
    set(DROPLESS_HAVE_MPI TRUE)
  else()
    dropless_missing(MPI "no MPI compiler wrapper found (Debian: libopenmpi-dev)")
  endif()
endif()
