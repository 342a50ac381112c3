# SPDX-License-Identifier: Apache-2.0
# Thirty participants need not build common/, the tools and the solutions thirty times. A teacher's clone builds them
# (./workshop setup --prebuilt). A clone with WORKSHOP_PREBUILT set to that clone's build folder uses them unchanged and
# builds only the participant's own programs.

set(_prebuilt_tools make_exercises compare_runs summarize_runs bench bench_report scaling report draw_images)
if(WORKSHOP_BACKEND STREQUAL "cpu")
  list(APPEND _prebuilt_tools blas_in_use)
endif()

# _workshop_version(result FOLDER): a hash of all sources of the prebuilt files, and of the checker.
function(_workshop_version result folder)
  file(GLOB_RECURSE files RELATIVE ${folder} ${folder}/backend_cpu/* ${folder}/checker/* ${folder}/common/* ${folder}/model/*
       ${folder}/solutions/* ${folder}/tools/*.cpp ${folder}/tools/*.h ${folder}/tools/*.cu ${folder}/tools/cmake/*)
  list(FILTER files EXCLUDE REGEX "(^|/)([.#]|__pycache__/)|(~|[.]swp|[.]orig|[.]rej|[.]bak|[.]mine)$")  # of editors and tools
  list(SORT files)
  set(version "")
  foreach(file ${files})
    file(SHA256 ${folder}/${file} hash)
    string(APPEND version "${file} ${hash}\n")
  endforeach()
  string(SHA256 version "${version}")
  set(${result} ${version} PARENT_SCOPE)
endfunction()

# workshop_export(): exports the targets that other clones use. Call it after all chapters.
function(workshop_export)
  if(WORKSHOP_PREBUILT)
    return()
  endif()
  get_property(all DIRECTORY PROPERTY BUILDSYSTEM_TARGETS)
  list(FILTER all INCLUDE REGEX "^solution_")  # programs and models
  set(libraries workshop_backend workshop_mpi workshop_common workshop_model workshop_model_bf16)
  if(WORKSHOP_BACKEND STREQUAL "cpu")
    list(APPEND libraries workshop_cpu workshop_emulated_gpu)
  endif()
  export(TARGETS ${libraries} ${_prebuilt_tools} ${all} FILE ${CMAKE_BINARY_DIR}/prebuilt/targets.cmake)
  # The version is written at build time, because it is that of the files built then.
  add_custom_target(prebuilt DEPENDS ${all} ${_prebuilt_tools} VERBATIM
                    COMMAND ${CMAKE_COMMAND} -D WORKSHOP_BACKEND=${WORKSHOP_BACKEND} -D FOLDER=${CMAKE_SOURCE_DIR}
                            -D VERSION_FILE=${CMAKE_BINARY_DIR}/prebuilt/version.txt -P ${CMAKE_CURRENT_FUNCTION_LIST_FILE})
endfunction()

if(VERSION_FILE)  # the command above
  _workshop_version(version ${FOLDER})
  file(WRITE ${VERSION_FILE} "${WORKSHOP_BACKEND} ${version}\n")
  return()
endif()
if(WORKSHOP_PREBUILT)
  if(NOT EXISTS ${WORKSHOP_PREBUILT}/prebuilt/version.txt)
    message(FATAL_ERROR "WORKSHOP_PREBUILT: nothing is prebuilt in ${WORKSHOP_PREBUILT}; run './workshop setup "
                        "--prebuilt' in the clone that it belongs to")
  endif()
  file(STRINGS ${WORKSHOP_PREBUILT}/prebuilt/version.txt theirs)
  _workshop_version(mine ${CMAKE_SOURCE_DIR})
  if(NOT theirs MATCHES "^${WORKSHOP_BACKEND} ")
    message(FATAL_ERROR "WORKSHOP_PREBUILT: ${WORKSHOP_PREBUILT} is not for the ${WORKSHOP_BACKEND} backend")
  elseif(NOT theirs STREQUAL "${WORKSHOP_BACKEND} ${mine}")
    message(FATAL_ERROR "WORKSHOP_PREBUILT: ${WORKSHOP_PREBUILT} is of another version of the workshop: its common/, "
                        "solutions/, tools/ or checker/ differ from this clone's")
  endif()
  include(${WORKSHOP_PREBUILT}/prebuilt/targets.cmake)
endif()

# Links the prebuilt folders to where ./workshop expects them: where they would be if they were built here.
foreach(folder solutions tools)
  set(_here ${CMAKE_BINARY_DIR}/${folder})
  if(WORKSHOP_PREBUILT)
    file(REMOVE_RECURSE ${_here})
    file(CREATE_LINK ${WORKSHOP_PREBUILT}/${folder} ${_here} SYMBOLIC)
  elseif(IS_SYMLINK ${_here})
    file(REMOVE ${_here})
  endif()
endforeach()
