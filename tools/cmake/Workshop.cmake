# How chapters and tests are built and run.

# workshop_program(target SOURCE file INCLUDE folder…): one program from one .cu file, as CUDA or as C++.
function(workshop_program target)
  cmake_parse_arguments(arg "" "SOURCE;OUTPUT" "INCLUDE" ${ARGN})
  get_filename_component(name ${arg_SOURCE} NAME_WE)
  add_executable(${target} ${arg_SOURCE})
  if(WORKSHOP_BACKEND STREQUAL "cpu")
    set_source_files_properties(${arg_SOURCE} PROPERTIES LANGUAGE CXX COMPILE_OPTIONS "-x;c++")
  else()
    set_source_files_properties(${arg_SOURCE} PROPERTIES LANGUAGE CUDA)
  endif()
  # The folder of chapters comes first: "01_single_gpu/mlp.h" is the solution's or the participant's.
  target_include_directories(${target} BEFORE PRIVATE ${arg_INCLUDE})
  target_link_libraries(${target} PRIVATE workshop_common)
  set_target_properties(${target} PROPERTIES OUTPUT_NAME ${name} RUNTIME_OUTPUT_DIRECTORY ${arg_OUTPUT})
endfunction()

# workshop_chapter(02_ddp ddp ddp_overlap): the solution and the exercise of each program of a chapter. The target
# `programs` builds those of all chapters, without the tests.
add_custom_target(programs)
# GCC 12 warns of overlapping copies in its own std::string.
set(WORKSHOP_WARNINGS -Wall -Wextra -Wno-restrict)
# A program with a TODO in it has variables that nothing uses yet.
set(WORKSHOP_EXERCISE_WARNINGS ${WORKSHOP_WARNINGS} -Wno-unused -Wno-unused-parameter)
function(workshop_chapter chapter)
  set(mine solutions)
  if(WORKSHOP_BUILD_ON STREQUAL "mine")
    set(mine .)
  endif()
  foreach(name ${ARGN})
    set_property(GLOBAL APPEND PROPERTY WORKSHOP_PROGRAMS ${chapter}/${name})
    workshop_program(solution_${chapter}_${name} SOURCE ${CMAKE_SOURCE_DIR}/solutions/${chapter}/${name}.cu
                     INCLUDE ${CMAKE_SOURCE_DIR}/solutions OUTPUT ${CMAKE_BINARY_DIR}/solutions/${chapter})
    workshop_program(${chapter}_${name} SOURCE ${CMAKE_SOURCE_DIR}/${chapter}/${name}.cu
                     INCLUDE ${CMAKE_SOURCE_DIR}/${mine} OUTPUT ${CMAKE_BINARY_DIR}/${chapter})
    target_compile_options(solution_${chapter}_${name} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:${WORKSHOP_WARNINGS}>)
    target_compile_options(${chapter}_${name} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:${WORKSHOP_EXERCISE_WARNINGS}>
                           $<$<COMPILE_LANGUAGE:CUDA>:--diag-suppress=177>)  # declared but never referenced
    add_dependencies(programs solution_${chapter}_${name} ${chapter}_${name})
  endforeach()
endfunction()

# The sanitizers' options in tests. Open MPI is not built with them, so what they say about it means nothing; to know
# that a leak is Open MPI's takes the whole stack.
set(_supp ${CMAKE_SOURCE_DIR}/tests/sanitizers)
set(WORKSHOP_SANITIZER_ENVIRONMENT "TSAN_OPTIONS=ignore_noninstrumented_modules=1:suppressions=${_supp}/tsan.supp"
    "ASAN_OPTIONS=fast_unwind_on_malloc=0"
    "LSAN_OPTIONS=suppressions=${_supp}/lsan.supp:print_suppressions=0" "UBSAN_OPTIONS=print_stacktrace=1")

# workshop_test(name COMMAND … [RANKS n] [LABELS …] [TIMEOUT s] [ENVIRONMENT …] [STATUS n] [MEASURES]): a test in a
# working directory of its own. With RANKS the command is started on that many ranks; STATUS is the exit status
# expected. One that MEASURES times runs alone, and has three attempts.
function(workshop_test name)
  cmake_parse_arguments(arg "MEASURES" "RANKS;TIMEOUT;STATUS" "COMMAND;LABELS;ENVIRONMENT" ${ARGN})
  set(command ${arg_COMMAND})
  if(arg_RANKS)
    set(command ${CMAKE_SOURCE_DIR}/tools/launch -n ${arg_RANKS} -- ${command})
  endif()
  if(arg_STATUS)
    set(command ${CMAKE_SOURCE_DIR}/tools/expect_status ${arg_STATUS} ${command})
  endif()
  if(arg_MEASURES)
    set(command ${CMAKE_SOURCE_DIR}/tests/measure ${command})
  endif()
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 300)  # a few seconds on a machine that is not busy
  endif()
  string(MAKE_C_IDENTIFIER ${name} folder)
  file(MAKE_DIRECTORY ${CMAKE_BINARY_DIR}/tests/run/${folder})
  add_test(NAME ${name} COMMAND ${command} WORKING_DIRECTORY ${CMAKE_BINARY_DIR}/tests/run/${folder})
  set_tests_properties(${name} PROPERTIES TIMEOUT ${arg_TIMEOUT} LABELS "${arg_LABELS}" SKIP_RETURN_CODE 77
                       RUN_SERIAL ${arg_MEASURES}
                       ENVIRONMENT "WORKSHOP_BACKEND=${WORKSHOP_BACKEND};WORKSHOP_TIMEOUT=20;${WORKSHOP_SANITIZER_ENVIRONMENT};${arg_ENVIRONMENT}")
endfunction()
