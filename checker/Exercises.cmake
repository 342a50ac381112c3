# SPDX-License-Identifier: Apache-2.0
# Tests of exercises: the participant's programs, and the machinery that judges them.

set(_check ${CMAKE_SOURCE_DIR}/checker/check_exercise)

# The command line of check_exercise for a program, without the number of ranks and the program to judge. `sources` has
# the participant's chapters.
function(_workshop_check_command result chapter program sources)
  set(command ${_check} --compare $<TARGET_FILE:compare_runs> --solution $<TARGET_FILE:solution_${chapter}_${program}>
      --sources ${sources} --fingerprints ${CMAKE_SOURCE_DIR}/checker/mistakes/fingerprints/${chapter}.txt)
  set(others FALSE)
  if(WORKSHOP_BUILD_ON STREQUAL "mine" AND sources STREQUAL CMAKE_SOURCE_DIR)
    set(others TRUE)  # then the earlier chapters are the participant's too
  endif()
  _workshop_files(files ${chapter}/${program}.cu ${others})
  _workshop_exercises(files "" ${files})
  foreach(file ${files})
    list(APPEND command --todos ${CMAKE_SOURCE_DIR}/solutions/${file})
  endforeach()
  set(${result} ${command} PARENT_SCOPE)
endfunction()

# _workshop_machine(result MACHINE): the option of check_exercise for a simulated machine, which only the cpu backend has.
function(_workshop_machine result machine)
  set(${result} "" PARENT_SCOPE)
  if(machine AND WORKSHOP_BACKEND STREQUAL "cpu")
    set(${result} --simulate ${machine} PARENT_SCOPE)
  endif()
endfunction()

# workshop_check(02_ddp ddp RANKS 1 2 4 [MACHINE machine] [OPTIONS …]): is the participant's program right on each of
# these numbers of ranks? On a simulated machine, its steps must not take longer than the solution's. Also checks that the
# solution itself is judged right.
function(workshop_check chapter program)
  cmake_parse_arguments(arg "" "MACHINE" "RANKS;OPTIONS" ${ARGN})
  _workshop_machine(machine "${arg_MACHINE}")
  set(timeout 150)  # check_exercise gives each run 60 s
  _workshop_check_command(check ${chapter} ${program} ${CMAKE_SOURCE_DIR})
  _workshop_check_command(check_solution ${chapter} ${program} ${CMAKE_SOURCE_DIR}/solutions)
  foreach(ranks ${arg_RANKS})
    set(name ${chapter}.${program}.${ranks}ranks)
    set(number 2)
    while(TEST exercise.${name})  # the same ranks with other options
      set(name ${chapter}.${program}.${ranks}ranks.${number})
      math(EXPR number "${number} + 1")
    endwhile()
    workshop_test(exercise.${name} LABELS exercise TIMEOUT ${timeout}
                  COMMAND ${CMAKE_SOURCE_DIR}/tests/python/with_python
                          ${CMAKE_SOURCE_DIR}/checker/tests/judge_exercise.py
                          ${check} ${machine} -n ${ranks} --mine $<TARGET_FILE:${chapter}_${program}> -- ${arg_OPTIONS})
    workshop_test(solution.${name} LABELS solution TIMEOUT ${timeout}
                  COMMAND ${check_solution} --levels guided,blank ${machine} -n ${ranks}
                          --mine $<TARGET_FILE:solution_${chapter}_${program}>
                          -- ${arg_OPTIONS})
    # A line for ./workshop check: folder, program, ranks, command, separated by tabs.
    string(MAKE_C_IDENTIFIER exercise.${name} folder)
    set(line ${folder} ${program} ${ranks} ${check} ${machine} -n ${ranks} --mine $<TARGET_FILE:${chapter}_${program}> --
             ${arg_OPTIONS})
    string(REPLACE ";" "\t" line "${line}")
    set_property(GLOBAL APPEND_STRING PROPERTY WORKSHOP_CHECKS_${chapter} "${line}\n")
  endforeach()
endfunction()

# _workshop_generate(02_ddp FOLDER target [LEVEL level] [FILLINGS file…]): the target runs make_exercises to write the
# chapter's exercises to FOLDER.
function(_workshop_generate chapter folder target)
  cmake_parse_arguments(arg "" "LEVEL" "FILLINGS" ${ARGN})
  _workshop_sources(sources ${chapter})
  _workshop_exercises(copies ${folder} ${sources})
  list(TRANSFORM sources PREPEND ${CMAKE_SOURCE_DIR}/solutions/)
  list(TRANSFORM copies PREPEND ${folder}/)
  set(fillings ${arg_FILLINGS})
  list(TRANSFORM fillings PREPEND "--filling;")
  if(arg_LEVEL)
    list(APPEND fillings --level ${arg_LEVEL})
  endif()
  add_custom_command(OUTPUT ${copies} DEPENDS ${sources} ${arg_FILLINGS} VERBATIM
                     COMMAND make_exercises ${fillings} ${CMAKE_SOURCE_DIR}/solutions ${folder} ${chapter})
  add_custom_target(${target} DEPENDS ${copies})
endfunction()

# For programs that run for milliseconds: hardly optimized, they compile in half the time.
set(_generated_options $<$<COMPILE_LANGUAGE:CXX>:${WORKSHOP_EXERCISE_WARNINGS};-Og>
    $<$<COMPILE_LANGUAGE:CUDA>:--diag-suppress=177,550>)

# _workshop_generated(PREFIX 02_ddp FOLDER program…): builds these programs of a chapter, and its models, from the exercises
# that the target PREFIX_02_ddp_sources writes to FOLDER, and from the solutions of other chapters. Makes the targets
# PREFIX_02_ddp_program and PREFIX_02_ddp_models.
function(_workshop_generated prefix chapter folder)
  set(written ${prefix}_${chapter}_sources)
  set(include ${folder} ${CMAKE_SOURCE_DIR}/solutions)
  _workshop_sources(models ${chapter})
  list(FILTER models INCLUDE REGEX "models[.]cu$")
  if(models)
    _workshop_models(earlier ${models} ${prefix}_ solution_)
    _workshop_place(source ${models} ${folder})
    workshop_models(${prefix}_${chapter}_models SOURCE ${source} INCLUDE ${include} MODELS ${earlier}
                    OPTIONS ${_generated_options})
    if(TARGET ${written})
      add_dependencies(${prefix}_${chapter}_models ${written})
      add_dependencies(${prefix}_${chapter}_models_bf16 ${written})
    endif()
  endif()
  foreach(program ${ARGN})
    set(target ${prefix}_${chapter}_${program})
    _workshop_models(models ${chapter}/${program}.cu ${prefix}_ solution_)
    _workshop_place(source ${chapter}/${program}.cu ${folder})
    workshop_program(${target} SOURCE ${source} INCLUDE ${include} MODELS ${models} OUTPUT ${folder}/${chapter})
    set_target_properties(${target} PROPERTIES EXCLUDE_FROM_ALL TRUE)
    target_compile_options(${target} PRIVATE ${_generated_options})
    if(TARGET ${written})
      add_dependencies(${target} ${written})
    endif()
  endforeach()
endfunction()

# workshop_filling(02_ddp ddp 02.1-sum RANKS 2 LEVELS guided,blank EXPECT regex… [RIGHT] [SAYS regex] [TIMEOUT s]
# [MACHINE machine] [OPTIONS …] [CPU_ONLY reason]): a program with this mistake from checker/mistakes/02_ddp.txt, and no other, is judged
# wrong at these levels (with RIGHT, it is judged right), and the verdicts match EXPECT and SAYS.
function(workshop_filling chapter program mistake)
  cmake_parse_arguments(arg "RIGHT" "LEVELS;SAYS;TIMEOUT;MACHINE;CPU_ONLY" "EXPECT;RANKS;OPTIONS" ${ARGN})
  _workshop_machine(machine "${arg_MACHINE}")
  set(status 1)
  if(arg_RIGHT)
    set(status 0)
  endif()
  set(expect)
  foreach(regex IN LISTS arg_EXPECT)
    list(APPEND expect -e "${regex}")
  endforeach()
  if(arg_SAYS)
    list(APPEND expect -e "${arg_SAYS}")
  endif()
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 60)
  endif()
  math(EXPR limit "${WORKSHOP_PATIENCE} * ${arg_TIMEOUT}")
  math(EXPR timeout "${arg_TIMEOUT} + 90")
  _workshop_check_command(check ${chapter} ${program} ${CMAKE_BINARY_DIR}/fillings)
  foreach(ranks ${arg_RANKS})
    workshop_test(filling.${chapter}.${program}.${mistake}.${ranks}ranks LABELS filling TIMEOUT ${timeout}
                  CPU_ONLY ${arg_CPU_ONLY} ENVIRONMENT WORKSHOP_FILLING=${mistake}
                  COMMAND ${CMAKE_SOURCE_DIR}/tests/expect_status ${expect} ${status}
                          ${check} --levels ${arg_LEVELS} ${machine} -n ${ranks} -t ${limit} --mine $<TARGET_FILE:wrong_${chapter}_${program}>
                          -- ${arg_OPTIONS})
  endforeach()
endfunction()

# _workshop_needs_bf16(02_ddp ddp): the participant's program is built for --precision bf16 too.
function(_workshop_needs_bf16 chapter program)
  set_target_properties(${chapter}_${program}_bf16 PROPERTIES EXCLUDE_FROM_ALL FALSE)
endfunction()

# _workshop_blank(02_ddp ddp ddp_overlap): compiles these programs of a chapter as they are handed out at the blank level.
# What would not compile there fails the build.
function(_workshop_blank chapter)
  set(folder ${CMAKE_BINARY_DIR}/blank)
  _workshop_generate(${chapter} ${folder} blank_${chapter}_sources LEVEL blank)
  set(sources)
  foreach(program ${ARGN})
    _workshop_place(source ${chapter}/${program}.cu ${folder})
    list(APPEND sources ${source})
  endforeach()
  add_library(blank_${chapter} OBJECT EXCLUDE_FROM_ALL ${sources})
  add_dependencies(fillings blank_${chapter})
  foreach(source ${sources})
    _workshop_source(blank_${chapter} ${source} ${folder} ${CMAKE_SOURCE_DIR}/solutions)
  endforeach()
  target_link_libraries(blank_${chapter} PRIVATE workshop_model)
  target_compile_options(blank_${chapter} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:${WORKSHOP_EXERCISE_WARNINGS};-O0>
                         $<$<COMPILE_LANGUAGE:CUDA>:--diag-suppress=177,550>)
  add_dependencies(blank_${chapter} blank_${chapter}_sources)
endfunction()

# workshop_exercises(02_ddp): calls the functions above as checker/mistakes/02_ddp.txt and a sample of the mutants in
# checker/mutants/02_ddp.txt say (checker/mistakes/README.md has the format). tools/python reads these lists. All wrong
# fillings of a chapter are compiled together (checker/filling.h): `wrong_02_ddp_ddp` is ddp with them.
function(workshop_exercises chapter)
  set(lists ${CMAKE_SOURCE_DIR}/checker/mistakes)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${lists}/${chapter}.txt ${lists}/fingerprints/${chapter}.txt
               ${CMAKE_SOURCE_DIR}/checker/mutants/${chapter}.txt ${CMAKE_SOURCE_DIR}/tools/python/workshop/mistakes.py)
  _workshop_sources(sources ${chapter})  # fillings may be changes of the solution's code
  list(TRANSFORM sources PREPEND ${CMAKE_SOURCE_DIR}/solutions/)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${sources})
  set(wanted cmake ${CMAKE_BINARY_DIR})
  if(NOT WORKSHOP_TESTS)
    set(wanted checks)
  endif()
  execute_process(COMMAND ${CMAKE_SOURCE_DIR}/tools/python/start mistakes ${wanted} ${chapter}
                  OUTPUT_VARIABLE calls ERROR_VARIABLE wrong RESULT_VARIABLE status)
  if(NOT status EQUAL 0)
    message(FATAL_ERROR "${wrong}")
  endif()
  cmake_language(EVAL CODE "${calls}")

  get_property(checks GLOBAL PROPERTY WORKSHOP_CHECKS_${chapter})
  file(GENERATE OUTPUT ${CMAKE_BINARY_DIR}/checks/${chapter} CONTENT "${checks}")
  if(NOT WORKSHOP_TESTS)
    return()
  endif()

  list(TRANSFORM _fillings REPLACE "(.+)" "${CMAKE_BINARY_DIR}/fillings/\\1.txt" OUTPUT_VARIABLE snippets)
  _workshop_generate(${chapter} ${CMAKE_BINARY_DIR}/fillings wrong_${chapter}_sources FILLINGS ${snippets})
  _workshop_generated(wrong ${chapter} ${CMAKE_BINARY_DIR}/fillings ${_programs})
  _workshop_blank(${chapter} ${_programs})
  foreach(program ${_programs})
    add_dependencies(fillings wrong_${chapter}_${program})
  endforeach()
  foreach(program ${_programs_in_bf16})
    workshop_twin(wrong_${chapter}_${program})
    set_target_properties(wrong_${chapter}_${program}_bf16 PROPERTIES EXCLUDE_FROM_ALL TRUE)
    add_dependencies(fillings wrong_${chapter}_${program}_bf16)
  endforeach()
endfunction()
