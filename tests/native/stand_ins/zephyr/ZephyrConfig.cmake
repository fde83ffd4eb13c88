# The Zephyr CMake functions that projects use, implemented for a host program according to Zephyr's documentation.
# CONFIG is a file with the values of Kconfig's symbols. LOG is a file that records calls without an effect here.
cmake_minimum_required(VERSION 3.20)
project(stand_in LANGUAGES C ASM)
include(${CONFIG})
file(WRITE ${LOG} "")

add_library(zephyr_interface INTERFACE)
add_executable(app)
target_link_libraries(app PRIVATE zephyr_interface)

function(zephyr_include_directories)
  target_include_directories(zephyr_interface INTERFACE ${ARGN})
endfunction()

macro(zephyr_library_named name)
  set(ZEPHYR_CURRENT_LIBRARY ${name})
  add_library(${name} STATIC)
  target_link_libraries(${name} PRIVATE zephyr_interface)
  target_link_libraries(app PRIVATE ${name})
endmacro()

function(zephyr_library_sources)
  target_sources(${ZEPHYR_CURRENT_LIBRARY} PRIVATE ${ARGN})
endfunction()

function(zephyr_library_compile_options)
  target_compile_options(${ZEPHYR_CURRENT_LIBRARY} PRIVATE ${ARGN})
endfunction()

function(zephyr_linker_sources location)
  foreach(path ${ARGN})
    if(NOT EXISTS ${CMAKE_CURRENT_SOURCE_DIR}/${path})
      message(FATAL_ERROR "there is no ${path}")
    endif()
    file(APPEND ${LOG} "linker_sources ${location} ${path}\n")
  endforeach()
endfunction()

function(zephyr_code_relocate)
  cmake_parse_arguments(PARSE_ARGV 0 given "NOCOPY;NOKEEP" "LOCATION;LIBRARY;FILTER" "FILES")
  if(NOT CONFIG_CODE_DATA_RELOCATION OR given_UNPARSED_ARGUMENTS OR NOT given_FILES)
    message(FATAL_ERROR "zephyr_code_relocate: ${ARGN}")
  endif()
  list(LENGTH given_FILES count)
  file(APPEND ${LOG} "code_relocate ${count} ${given_LOCATION} ${given_FILTER}\n")
endfunction()

foreach(module ${EXTRA_ZEPHYR_MODULES})
  file(STRINGS ${module}/zephyr/module.yml lines REGEX "^  cmake: ")
  string(REGEX REPLACE "^  cmake: " "" folder "${lines}")
  add_subdirectory(${module}/${folder} module)
endforeach()
