# SPDX-License-Identifier: Apache-2.0
# Finds nvcc, asks it which of our architectures it can build, and enables the CUDA language. An
# nvcc that is there but cannot compile C++20 with this host compiler must not break AUTO.
#
# dropless_cuda_options(target) gives a target's CUDA sources their flags. Architectures are
# plain flags: CMake 3.25 does not know sm_100a.
set(DROPLESS_CUDA_WANTED 80 90a 100a CACHE STRING "CUDA architectures to build, without sm_")

find_program(DROPLESS_NVCC nvcc
  HINTS ${CMAKE_CUDA_COMPILER} $ENV{CUDACXX} ${CUDAToolkit_ROOT}/bin $ENV{CUDA_HOME}/bin $ENV{CUDA_PATH}/bin
        /usr/local/cuda/bin)
mark_as_advanced(DROPLESS_NVCC)

# Architectures that nvcc builds; the answer is kept until nvcc, the host compiler or the list changes.
function(dropless_probe_nvcc)
  file(TIMESTAMP ${DROPLESS_NVCC} stamp UTC)
  set(key "${DROPLESS_NVCC};${stamp};${CMAKE_CXX_COMPILER};${CMAKE_CXX_COMPILER_VERSION};${DROPLESS_CUDA_WANTED}")
  if(DROPLESS_PROBED_KEY STREQUAL key)
    return()
  endif()
  set(folder ${CMAKE_BINARY_DIR}/CMakeFiles/dropless_probe)
  file(WRITE ${folder}/probe.cu
    "#include <bit>\n#include <cstdint>\n__global__ void probe(float* x) { x[threadIdx.x] = std::bit_cast<float>(1u); }\n")
  set(working)
  set(reason)
  foreach(architecture IN LISTS DROPLESS_CUDA_WANTED)
    execute_process(
      COMMAND ${DROPLESS_NVCC} -std=c++20 -ccbin ${CMAKE_CXX_COMPILER} --expt-relaxed-constexpr
              -gencode arch=compute_${architecture},code=sm_${architecture}
              -c ${folder}/probe.cu -o ${folder}/probe_${architecture}.o
      RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output)
    if(status EQUAL 0)
      list(APPEND working ${architecture})
    else()
      string(REGEX MATCH "[^\n]*(rror|atal)[^\n]*" reason "${output}")
    endif()
  endforeach()
  set(DROPLESS_PROBED_KEY "${key}" CACHE INTERNAL "")
  set(DROPLESS_PROBED_ARCHITECTURES "${working}" CACHE INTERNAL "")
  set(DROPLESS_PROBED_REASON "${reason}" CACHE INTERNAL "")
endfunction()

if(NOT DROPLESS_NVCC)
  dropless_missing(CUDA "nvcc not found; put it on PATH or set CUDAToolkit_ROOT")
else()
  dropless_probe_nvcc()
  set(DROPLESS_CUDA_ARCHITECTURES ${DROPLESS_PROBED_ARCHITECTURES})
  if(NOT DROPLESS_CUDA_ARCHITECTURES)
    dropless_missing(CUDA "${DROPLESS_NVCC} builds none of ${DROPLESS_CUDA_WANTED}: ${DROPLESS_PROBED_REASON}")
  else()
    if(NOT DEFINED CMAKE_CUDA_COMPILER)
      set(CMAKE_CUDA_COMPILER ${DROPLESS_NVCC})
    endif()
    if(NOT DEFINED CMAKE_CUDA_HOST_COMPILER)
      set(CMAKE_CUDA_HOST_COMPILER ${CMAKE_CXX_COMPILER})
    endif()
    set(CMAKE_CUDA_ARCHITECTURES OFF)
    enable_language(CUDA)
    foreach(kind STANDARD EXTENSION)  # CMake 3.25.1 does not know this option of nvcc
      if(NOT DEFINED CMAKE_CUDA20_${kind}_COMPILE_OPTION)
        set(CMAKE_CUDA20_${kind}_COMPILE_OPTION -std=c++20)
      endif()
    endforeach()
    find_package(CUDAToolkit REQUIRED)
    set(DROPLESS_HAVE_CUDA TRUE)
  endif()
endif()

function(dropless_cuda_options target)
  set(flags)
  foreach(architecture IN LISTS DROPLESS_CUDA_ARCHITECTURES)
    set(code sm_${architecture})
    if(architecture STREQUAL 80)  # GPUs that have no machine code here compile this at start
      set(code [sm_80,compute_80])
    endif()
    list(APPEND flags "SHELL:-gencode arch=compute_${architecture},code=${code}")
  endforeach()
  if(DROPLESS_WARNINGS_AS_ERRORS)
    list(APPEND flags "SHELL:-Werror all-warnings")
    # ptxas only informs when it serialises tensor-core instructions; nvcc has no flag against it.
    set_target_properties(${target} PROPERTIES
      CUDA_COMPILER_LAUNCHER "${PROJECT_SOURCE_DIR}/cmake/fail_on_performance_loss.sh;${CMAKE_CUDA_COMPILER_LAUNCHER}")
  endif()
  foreach(flag IN LISTS flags ITEMS --expt-relaxed-constexpr -Xcompiler=-Wall,-Wextra)
    target_compile_options(${target} PRIVATE "$<$<COMPILE_LANGUAGE:CUDA>:${flag}>")
  endforeach()
  set_target_properties(${target} PROPERTIES CUDA_ARCHITECTURES OFF CUDA_STANDARD 20)
  target_include_directories(${target} PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>)
endfunction()
