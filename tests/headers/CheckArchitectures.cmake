# SPDX-License-Identifier: Apache-2.0
# Fails unless a CUDA object file holds machine code for each of ARCHITECTURES (comma separated).
if(CUOBJDUMP)
  execute_process(COMMAND ${CUOBJDUMP} --list-elf ${OBJECT} OUTPUT_VARIABLE listing COMMAND_ERROR_IS_FATAL ANY)
else()
  # Without the tool: ptxas leaves its own command line, uncompressed, beside each machine code.
  file(STRINGS ${OBJECT} listing REGEX "-arch sm_[0-9]+[a-z]?")
endif()
message("${listing}")
string(REPLACE "," ";" architectures "${ARCHITECTURES}")
if(NOT architectures)
  message(FATAL_ERROR "no architecture to look for")
endif()
foreach(architecture IN LISTS architectures)
  if(NOT listing MATCHES "sm_${architecture}([^0-9a-z]|$)")
    message(FATAL_ERROR "${OBJECT} holds no machine code for sm_${architecture}")
  endif()
endforeach()
