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
  _workshop_exercises(files ${files})
  foreach(file ${files})
    list(APPEND command --todos ${CMAKE_SOURCE_DIR}/solutions/${file})
  endforeach()
  set(${result} ${command} PARENT_SCOPE)
endfunction()

# workshop_check(02_ddp ddp RANKS 1 2 4 [OPTIONS …]): is the participant's program right on
# so many ranks? Also checks that the solution itself is judged right.
function(workshop_check chapter program)
  cmake_parse_arguments(arg "" "" "RANKS;OPTIONS" ${ARGN})
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
                  COMMAND ${CMAKE_SOURCE_DIR}/checker/tests/judge_exercise
                          ${check} -n ${ranks} --mine $<TARGET_FILE:${chapter}_${program}> -- ${arg_OPTIONS})
    workshop_test(solution.${name} LABELS solution TIMEOUT ${timeout}
                  COMMAND ${check_solution} -n ${ranks} --mine $<TARGET_FILE:solution_${chapter}_${program}>
                          -- ${arg_OPTIONS})
    # A line for ./workshop check: folder, program, ranks, command; behind a tab each.
    string(MAKE_C_IDENTIFIER exercise.${name} folder)
    string(REPLACE ";" "\t" line "${folder};${program};${ranks};${check};-n;${ranks};--mine;$<TARGET_FILE:${chapter}_${program}>;--;${arg_OPTIONS}")
    set_property(GLOBAL APPEND_STRING PROPERTY WORKSHOP_CHECKS_${chapter} "${line}\n")
  endforeach()
endfunction()

# _workshop_generate(02_ddp FOLDER target [FILLINGS file…]): the target has make_exercises write the chapter's exercises to
# FOLDER.
function(_workshop_generate chapter folder target)
  cmake_parse_arguments(arg "" "" "FILLINGS" ${ARGN})
  _workshop_sources(sources ${chapter})
  _workshop_exercises(copies ${sources})
  list(TRANSFORM sources PREPEND ${CMAKE_SOURCE_DIR}/solutions/)
  list(TRANSFORM copies PREPEND ${folder}/)
  set(fillings ${arg_FILLINGS})
  list(TRANSFORM fillings PREPEND "--filling;")
  add_custom_command(OUTPUT ${copies} DEPENDS ${sources} ${arg_FILLINGS} VERBATIM
                     COMMAND make_exercises ${fillings} ${CMAKE_SOURCE_DIR}/solutions ${folder} ${chapter})
  add_custom_target(${target} DEPENDS ${copies})
endfunction()

# What runs for some milliseconds: hardly optimized, it compiles in half the time.
set(_generated_options $<$<COMPILE_LANGUAGE:CXX>:${WORKSHOP_EXERCISE_WARNINGS};-Og>
    $<$<COMPILE_LANGUAGE:CUDA>:--diag-suppress=177,550>)

# _workshop_generated(PREFIX 02_ddp FOLDER program…): builds these programs of a chapter, and its models, from the exercises
# that the target PREFIX_02_ddp_sources writes to FOLDER, on the solutions of the others: the targets PREFIX_02_ddp_program
# and PREFIX_02_ddp_models.
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
    target_compile_options(${target} PRIVATE ${_generated_options})
    if(TARGET ${written})
      add_dependencies(${target} ${written})
    endif()
  endforeach()
endfunction()

# workshop_filling(02_ddp ddp 02.1-sum RANKS 2 EXPECT regex [RIGHT] [SAYS sentence] [TIMEOUT s] [OPTIONS …]
# [CPU_ONLY reason]): the TODO filled in as checker/mistakes/02_ddp.txt says, and all others right, is judged wrong, unless
# it is RIGHT, and the verdict matches and has the sentence, but where the program gives up, for any of its ranks may be
# the first to say so.
function(workshop_filling chapter program mistake)
  cmake_parse_arguments(arg "RIGHT" "EXPECT;SAYS;TIMEOUT;CPU_ONLY" "RANKS;OPTIONS" ${ARGN})
  set(status 1)
  if(arg_RIGHT)
    set(status 0)
  endif()
  set(expect -e "${arg_EXPECT}")
  if(arg_SAYS AND NOT arg_EXPECT MATCHES "did not finish|see TODO|same memory")
    string(REGEX REPLACE "([][+.*()^?{}|])" "\\\\\\1" says "${arg_SAYS}")
    list(APPEND expect -e "${says}")
  endif()
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 60)
  endif()
  math(EXPR limit "${WORKSHOP_PATIENCE} * ${arg_TIMEOUT}")
  math(EXPR timeout "${arg_TIMEOUT} + 90")
  _workshop_check_command(check ${chapter} ${program} ${CMAKE_BINARY_DIR}/fillings)
  foreach(ranks ${arg_RANKS})
    workshop_test(filling.${chapter}.${program}.${mistake}.${ranks}ranks LABELS solution TIMEOUT ${timeout}
                  CPU_ONLY ${arg_CPU_ONLY} ENVIRONMENT WORKSHOP_FILLING=${mistake}
                  COMMAND ${CMAKE_SOURCE_DIR}/tests/expect_status ${expect} ${status}
                          ${check} -n ${ranks} -t ${limit} --mine $<TARGET_FILE:wrong_${chapter}_${program}>
                          -- ${arg_OPTIONS})
  endforeach()
endfunction()

# workshop_exercises(02_ddp): all of that, as checker/mistakes/02_ddp.txt says. In it,
#
#   program ddp                             is what the lines below are about;
#   check 2 4 -- OPTION...                  workshop_check() on 2 and on 4 ranks;
#   run 2 within 15 -- OPTION…              how the wrong fillings below are run, each within 15 s instead of 60: only as
#                                           some `check` runs too, or else nothing would show that ./workshop check
#                                           finds them;
#   cpu_only REASON                         why just the cpu backend can run them;
#   02.1-sum: REGEX                         a wrong filling: its TODO, its name, and what the verdict must match, which is
#                                           "TODO 02.1" unless it is said. Its code is below, indented; one that stands
#                                           in the file twice has it but once;
#   says SENTENCE                           right below that line: what ./workshop check tells a participant who has
#                                           made this mistake: what they did and why it is wrong, but not what is right.
#                                           Mistakes that no run tells apart have the same sentence.
#   right 02.1-by-hand: REGEX               a filling that is not the solution's and right as well: so it must be judged.
#
# checker/make_fingerprints keeps in fingerprints/02_ddp.txt what the mistakes look like. Run it after every change here.
# A sample of mutants in checker/mutants/02_ddp.txt is read in the same way.
# All wrong fillings of a chapter are compiled together (checker/filling.h): `wrong_02_ddp_ddp` is ddp with them.
function(workshop_exercises chapter)
  set(text)
  set(lines)
  foreach(path ${CMAKE_SOURCE_DIR}/checker/mistakes/${chapter}.txt ${CMAKE_SOURCE_DIR}/checker/mutants/${chapter}.txt)
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${path})
    file(READ ${path} of_file)
    string(APPEND text "${of_file}")
    file(STRINGS ${path} of_file REGEX "^[^# ]")
    string(APPEND lines "${of_file};")
  endforeach()
  set(prints ${CMAKE_SOURCE_DIR}/checker/mistakes/fingerprints/${chapter}.txt)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${prints})
  file(READ ${prints} prints)
  set(snippets)
  set(wrong)       # programs that have wrong fillings
  set(wrong_bf16)  # that have some to be run with --precision bf16
  set(checks)
  list(REMOVE_ITEM lines "")
  foreach(line IN LISTS lines)
    set(given "")
    if(line MATCHES " -- (.*)$")
      set(given "${CMAKE_MATCH_1}")
    endif()
    separate_arguments(options UNIX_COMMAND "${given}")
    string(REGEX REPLACE " -- .*" "" words "${line}")
    separate_arguments(words)
    list(GET words 0 what)
    cmake_parse_arguments(arg "" "program;within" "check;run" ${words})
    if(what STREQUAL "program")
      set(program ${arg_program})
    elseif(what STREQUAL "check")
      workshop_check(${chapter} ${program} RANKS ${arg_check} OPTIONS ${options})
      foreach(ranks ${arg_check})
        list(APPEND checks "${program} ${ranks} ${given}")
      endforeach()
      if(given MATCHES "--precision bf16")
        set_target_properties(${chapter}_${program}_bf16 PROPERTIES EXCLUDE_FROM_ALL FALSE)
      endif()
    elseif(what STREQUAL "run")
      set(run RANKS ${arg_run} TIMEOUT ${arg_within} OPTIONS ${options})
      foreach(ranks ${arg_run})
        if(NOT "${program} ${ranks} ${given}" IN_LIST checks)
          message(FATAL_ERROR "${chapter}.txt: no check is like '${line}' on ${ranks} ranks")
        endif()
      endforeach()
    elseif(line MATCHES "^cpu_only (.*)")
      list(APPEND run CPU_ONLY "${CMAKE_MATCH_1}")
    elseif(line MATCHES "^(right )?(([0-9.]+)-[^:]+)(: (.+))?$")
      if(WORKSHOP_PREBUILT)
        continue()  # what tests the judge is built where that is
      endif()
      set(mistake ${CMAKE_MATCH_2})
      set(how ${run})
      set(expect "TODO ${CMAKE_MATCH_3}")
      if(CMAKE_MATCH_1)
        list(PREPEND how RIGHT)
        set(expect "right")
      endif()
      if(CMAKE_MATCH_4)
        set(expect "${CMAKE_MATCH_5}")
      endif()
      set(says "")
      if(text MATCHES "\n${mistake}(: [^\n]*)?\nsays ([^\n]*)\n")
        set(says "${CMAKE_MATCH_2}")
      endif()
      if(text MATCHES "\n(right )?${mistake}(: [^\n]*)?\n(says [^\n]*\n)?(( [^\n]*)?\n)+")
        string(REGEX REPLACE "^\n[^\n]*\n(says [^\n]*\n)?" "" code "${CMAKE_MATCH_0}")
        string(REGEX REPLACE "\n+$" "\n" code "${code}")
        file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/fillings/${mistake}.txt CONTENT "${code}" @ONLY)
        list(APPEND snippets ${CMAKE_BINARY_DIR}/fillings/${mistake}.txt)
      endif()
      # What nothing but these checkers has found is found nowhere else.
      string(REGEX MATCHALL "\n${mistake} [|] " found "${prints}")
      string(REGEX MATCHALL "\n${mistake} [|] status 1, (order|bounds):" by_checkers "${prints}")
      list(LENGTH found found)
      list(LENGTH by_checkers by_checkers)
      if(found GREATER 0 AND found EQUAL by_checkers AND NOT CPU_ONLY IN_LIST run)
        list(APPEND how CPU_ONLY "the order and bounds checkers, of the cpu backend, find it")
      endif()
      list(APPEND wrong ${program})
      if("bf16" IN_LIST run)
        list(APPEND wrong_bf16 ${program})
      endif()
      workshop_filling(${chapter} ${program} ${mistake} EXPECT "${expect}" SAYS "${says}" ${how})
    elseif(NOT what STREQUAL "says")
      message(FATAL_ERROR "${chapter}.txt: what is '${line}'?")
    endif()
  endforeach()

  get_property(checks GLOBAL PROPERTY WORKSHOP_CHECKS_${chapter})
  file(GENERATE OUTPUT ${CMAKE_BINARY_DIR}/checks/${chapter} CONTENT "${checks}")
  if(WORKSHOP_PREBUILT)
    return()
  endif()

  list(REMOVE_DUPLICATES snippets)
  list(REMOVE_DUPLICATES wrong)
  _workshop_generate(${chapter} ${CMAKE_BINARY_DIR}/fillings wrong_${chapter}_sources FILLINGS ${snippets})
  _workshop_generated(wrong ${chapter} ${CMAKE_BINARY_DIR}/fillings ${wrong})
  list(REMOVE_DUPLICATES wrong_bf16)
  foreach(program ${wrong_bf16})
    workshop_twin(wrong_${chapter}_${program})
  endforeach()
endfunction()
