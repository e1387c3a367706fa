# SPDX-License-Identifier: Apache-2.0
# How every target of the project is made: the same warnings, the same standard, sources by folder.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_C_STANDARD 99)
set(CMAKE_C_STANDARD_REQUIRED ON)
set(CMAKE_C_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
if(PROJECT_IS_TOP_LEVEL AND NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()

option(DROPLESS_WARNINGS_AS_ERRORS "A warning fails the build" OFF)
set(DROPLESS_SANITIZE "" CACHE STRING "Sanitizers, comma separated: address, undefined")

find_program(DROPLESS_CCACHE ccache)
mark_as_advanced(DROPLESS_CCACHE)
if(DROPLESS_CCACHE)
  set(launcher ${DROPLESS_CCACHE})
  if(DROPLESS_QUICK_BUILD)  # ccache refuses precompiled headers without this
    set(launcher ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros ${DROPLESS_CCACHE})
    add_compile_options($<$<COMPILE_LANG_AND_ID:CXX,GNU>:-fpch-preprocess>)
  endif()
  foreach(language C CXX CUDA)
    if(NOT DEFINED CMAKE_${language}_COMPILER_LAUNCHER)
      set(CMAKE_${language}_COMPILER_LAUNCHER ${launcher})
    endif()
  endforeach()
endif()

if(DROPLESS_SANITIZE)
  add_compile_options($<$<COMPILE_LANGUAGE:C,CXX>:-fsanitize=${DROPLESS_SANITIZE}>
    $<$<COMPILE_LANGUAGE:C,CXX>:-fno-omit-frame-pointer>
    $<$<COMPILE_LANGUAGE:C,CXX>:-fno-sanitize-recover=all>)
  add_link_options(-fsanitize=${DROPLESS_SANITIZE})
endif()

function(dropless_options target)
  target_compile_options(${target} PRIVATE
    $<$<COMPILE_LANGUAGE:C,CXX>:-Wall;-Wextra;-Wpedantic;-Wshadow>
    $<$<COMPILE_LANGUAGE:CXX>:-Wnon-virtual-dtor;-Woverloaded-virtual>)
  if(CMAKE_CXX_COMPILER_ID STREQUAL GNU AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
    # False alarm of GCC 12 on "text" + std::string.
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-Wno-restrict>)
  endif()
  if(DROPLESS_SANITIZE)  # GCC's data flow is misled by the instrumentation
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:C,CXX>:-Wno-maybe-uninitialized>)
  endif()
  if(DROPLESS_WARNINGS_AS_ERRORS)
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:C,CXX>:-Werror>)
  endif()
  target_compile_features(${target} PUBLIC cxx_std_20)
  target_include_directories(${target} PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>
    $<INSTALL_INTERFACE:include/dropless>)
endfunction()

# dropless_library(name FOLDERS folder... LIBRARIES target...): a static library of all sources there,
# called dropless::<name without dropless_> as well.
function(dropless_library name)
  cmake_parse_arguments(arg "" "" "FOLDERS;LIBRARIES" ${ARGN})
  set(sources)
  foreach(folder IN LISTS arg_FOLDERS)
    file(GLOB found CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${folder}/*.cpp)
    list(APPEND sources ${found})
  endforeach()
  if(NOT sources)
    file(WRITE ${CMAKE_CURRENT_BINARY_DIR}/${name}_empty.cpp "")
    set(sources ${CMAKE_CURRENT_BINARY_DIR}/${name}_empty.cpp)
  endif()
  add_library(${name} STATIC ${sources})
  target_link_libraries(${name} PUBLIC dropless_contract ${arg_LIBRARIES})
  dropless_options(${name})
  string(REPLACE dropless_ "" alias ${name})
  add_library(dropless::${alias} ALIAS ${name})
  set_target_properties(${name} PROPERTIES EXPORT_NAME ${alias})
endfunction()

# What GoogleTest's macros become takes half as long to compile without optimisation; what a test
# calls is in libraries, which keep theirs.
function(dropless_test_options target)
  target_link_libraries(${target} PRIVATE GTest::gtest GTest::gtest_main)
  dropless_options(${target})
  target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:C,CXX>:-O0>)
endfunction()

# dropless_add_test(name SOURCES file... LIBRARIES target... [LABELS label...] [TIMEOUT seconds]):
# a GoogleTest executable. Each of its tests is a ctest named <name>.<suite>.<test>; one more,
# <name>.has_tests, fails when the executable contains none.
function(dropless_add_test name)
  cmake_parse_arguments(arg "" "TIMEOUT" "SOURCES;LIBRARIES;LABELS" ${ARGN})
  if(NOT arg_SOURCES OR arg_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "dropless_add_test(${name}): SOURCES missing or unknown arguments: ${arg_UNPARSED_ARGUMENTS}")
  endif()
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 120)
  endif()
  if(DROPLESS_SANITIZE)
    math(EXPR arg_TIMEOUT "5 * ${arg_TIMEOUT}")
  endif()
  add_executable(${name} ${arg_SOURCES})
  target_link_libraries(${name} PRIVATE ${arg_LIBRARIES})
  dropless_test_options(${name})
  dropless_precompile(${name} LIKE dropless_test_headers)
  gtest_discover_tests(${name} TEST_PREFIX ${name}. DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT 120
    TEST_LIST ${name}_discovered PROPERTIES TIMEOUT ${arg_TIMEOUT})
  if(arg_LABELS)
    # Several labels do not survive the way of PROPERTIES through gtest_discover_tests.
    set(labels_file ${CMAKE_CURRENT_BINARY_DIR}/${name}_labels.cmake)
    file(WRITE ${labels_file} "if(${name}_discovered)\n  set_tests_properties(\${${name}_discovered}"
      " PROPERTIES LABELS \"${arg_LABELS}\")\nendif()\n")
    set_property(DIRECTORY APPEND PROPERTY TEST_INCLUDE_FILES ${labels_file})
  endif()
  add_test(NAME ${name}.has_tests
    COMMAND ${CMAKE_COMMAND} -DPROGRAM=$<TARGET_FILE:${name}>
            -P ${PROJECT_SOURCE_DIR}/cmake/CheckHasTests.cmake)
  set_tests_properties(${name}.has_tests PROPERTIES LABELS "${arg_LABELS}" TIMEOUT 120)
endfunction()

# dropless_embed(target FUNCTION name FILES path...): the files become part of the target, see
# conformance/cases/embedded.h.
function(dropless_embed target)
  cmake_parse_arguments(arg "" "FUNCTION" "FILES" ${ARGN})
  set(script ${PROJECT_SOURCE_DIR}/cmake/EmbedFiles.cmake)
  set(output ${CMAKE_CURRENT_BINARY_DIR}/${arg_FUNCTION}.cpp)
  add_custom_command(OUTPUT ${output}
    COMMAND ${CMAKE_COMMAND} -DOUTPUT=${output} -DFUNCTION=${arg_FUNCTION} "-DFILES=${arg_FILES}"
            -P ${script}
    DEPENDS ${arg_FILES} ${script} COMMENT "Embedding ${arg_FUNCTION}" VERBATIM)
  target_sources(${target} PRIVATE ${output})
endfunction()
