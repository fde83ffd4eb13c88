# The part of ESP-IDF's build system that projects use, implemented for a host program according to Espressif's
# documentation. CONFIG is a file with the values of Kconfig's symbols.
include(${CONFIG})

function(idf_component_register)
  cmake_parse_arguments(PARSE_ARGV 0 given "" "" "SRCS;INCLUDE_DIRS;LDFRAGMENTS")
  if(given_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "idf_component_register: ${given_UNPARSED_ARGUMENTS}")
  endif()
  foreach(path ${given_LDFRAGMENTS})
    get_filename_component(path ${path} ABSOLUTE)
    if(NOT EXISTS ${path})
      message(FATAL_ERROR "there is no ${path}")
    endif()
    configure_file(${path} ${CMAKE_BINARY_DIR}/${COMPONENT_NAME}.lf COPYONLY)
  endforeach()
  add_library(${COMPONENT_LIB} STATIC ${given_SRCS})
  target_include_directories(${COMPONENT_LIB} PUBLIC ${given_INCLUDE_DIRS})
endfunction()

macro(project name)
  _project(${name} C ASM)
  set(others)
  foreach(folder ${CMAKE_SOURCE_DIR}/main ${EXTRA_COMPONENT_DIRS})
    get_filename_component(folder ${folder} ABSOLUTE)
    # the first pass, in which components only declare themselves
    execute_process(
      COMMAND ${CMAKE_COMMAND} -DCOMPONENT=${folder} -P $ENV{IDF_PATH}/tools/cmake/early.cmake
      COMMAND_ERROR_IS_FATAL ANY)
    get_filename_component(COMPONENT_NAME ${folder} NAME)
    set(COMPONENT_LIB __idf_${COMPONENT_NAME})
    add_subdirectory(${folder} esp-idf/${COMPONENT_NAME})
    if(NOT COMPONENT_NAME STREQUAL main)
      list(APPEND others ${COMPONENT_LIB})
    endif()
  endforeach()
  # the component main may use all others
  target_link_libraries(__idf_main PUBLIC ${others})
  add_executable(${name}.elf $ENV{IDF_PATH}/start.c)
  target_link_libraries(${name}.elf PRIVATE __idf_main)
endmacro()
