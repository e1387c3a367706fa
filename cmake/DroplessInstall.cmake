# SPDX-License-Identifier: Apache-2.0
# install(): the contract, the libraries behind it, the tool and a relocatable package config.
#
#   find_package(dropless REQUIRED)
#   target_link_libraries(mine PRIVATE dropless::contract)
#
# Headers keep their names of the source tree: <dropless/contract.h>, <reference/routing.h>.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(libraries dropless_contract dropless_reference dropless_tolerances dropless_cpu)
install(TARGETS ${libraries} EXPORT dropless_targets
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
if(TARGET dropless)
  install(TARGETS dropless RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()
if(TARGET dropless_mpi_rank)  # the tool looks for it beside itself
  install(TARGETS dropless_mpi_rank RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()
install(DIRECTORY include/dropless DESTINATION include)
foreach(folder reference tolerances)
  install(DIRECTORY ${folder} DESTINATION include/dropless FILES_MATCHING PATTERN "*.h")
endforeach()
install(FILES optimized/cpu/implementation.h DESTINATION include/dropless/optimized/cpu)
if(TARGET dropless_cuda)
  # An export of its own: a machine without a CUDA toolkit can use the rest of the package.
  install(TARGETS dropless_cuda EXPORT dropless_cuda_targets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
  install(FILES optimized/cuda/implementation.h DESTINATION include/dropless/optimized/cuda)
endif()
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/dropless)

set(package ${CMAKE_INSTALL_LIBDIR}/cmake/dropless)
install(EXPORT dropless_targets FILE droplessTargets.cmake NAMESPACE dropless:: DESTINATION ${package})
if(TARGET dropless_cuda)
  install(EXPORT dropless_cuda_targets FILE droplessCudaTargets.cmake NAMESPACE dropless:: DESTINATION ${package})
endif()
configure_package_config_file(cmake/droplessConfig.cmake.in ${PROJECT_BINARY_DIR}/droplessConfig.cmake
  INSTALL_DESTINATION ${package})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/droplessConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/droplessConfig.cmake ${PROJECT_BINARY_DIR}/droplessConfigVersion.cmake
  DESTINATION ${package})
