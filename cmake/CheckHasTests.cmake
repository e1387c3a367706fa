# SPDX-License-Identifier: Apache-2.0
# Fails when a GoogleTest executable lists no test: ctest would leave it out in silence.
execute_process(COMMAND ${PROGRAM} --gtest_list_tests OUTPUT_VARIABLE listing RESULT_VARIABLE status)
if(NOT status EQUAL 0)
  message(FATAL_ERROR "${PROGRAM} --gtest_list_tests: exit status ${status}")
endif()
if(NOT listing MATCHES "\n  [^ \n]")
  message(FATAL_ERROR "${PROGRAM} contains no test")
endif()
