# SPDX-License-Identifier: Apache-2.0
# How chapters and tests are built and run.

# Optimization of programs and the cpu backend: loops over elements vectorize and run as fast as with -O3, and the rest,
# whose run time does not matter, compiles in two thirds of the time.
set(WORKSHOP_OPTIMIZATION "$<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CONFIG:Release>>:-O1;-ftree-vectorize;-funswitch-loops>")
# Optimization of what runs once per run, or beside it: options, checkpoints, the watchdog, the checker. It compiles in
# four fifths of the time of -O1, and a participant waits for the compiler before the first verdict.
set(WORKSHOP_LIGHT_OPTIMIZATION "$<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CONFIG:Release>>:-Og>")

# workshop_unity(target group file…): compiles these files of a target together, because most of the time goes into the
# headers that they include. Turn it off for clang-tidy, which must see each file by itself. Do not use it for files
# with compile options of their own.
option(WORKSHOP_UNITY "compile files of common/, tools/ and tests/ together" ON)
function(workshop_unity target group)
  if(WORKSHOP_UNITY)
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
    set_source_files_properties(${ARGN} PROPERTIES UNITY_GROUP ${group})
  endif()
endfunction()

# How the cpu backend compiles a .cu file: as C++. #pragma omp simd marks sums that may be added up in any order; nothing
# else of OpenMP is used. Without -mprefer-vector-width=512, GCC uses only half of each AVX-512 register.
set(WORKSHOP_CU_AS_CXX -x c++ -fopenmp-simd)
if(CMAKE_SYSTEM_PROCESSOR STREQUAL "x86_64")
  list(APPEND WORKSHOP_CU_AS_CXX -mprefer-vector-width=512)
endif()

# _workshop_source(target file): sets up a .cu file as CUDA or C++, with its options, include folders and libraries.
function(_workshop_source target file)
  if(WORKSHOP_BACKEND STREQUAL "cpu")
    set_source_files_properties(${file} PROPERTIES LANGUAGE CXX COMPILE_OPTIONS "${WORKSHOP_CU_AS_CXX}")
  else()
    set_source_files_properties(${file} PROPERTIES LANGUAGE CUDA)
  endif()
  # The folder of chapters comes first: "01_single_gpu/mlp.h" is the solution's or the participant's.
  target_include_directories(${target} BEFORE PRIVATE ${ARGN})
  target_link_libraries(${target} PUBLIC workshop_common)
endfunction()

# workshop_emulates_gpu(target [SOURCES file…] [DEFINE definition…]): compiles the target, or these files of it, for
# emulated threads of a GPU (checker/emulated_gpu). The emulation gets the accesses to memory from -fsanitize=thread,
# whose own library must not be linked.
function(workshop_emulates_gpu target)
  cmake_parse_arguments(arg "" "" "SOURCES;DEFINE" ${ARGN})
  set(options -fno-sanitize=all -fsanitize=thread -Wno-unknown-pragmas)
  if(arg_SOURCES)
    set_property(SOURCE ${arg_SOURCES} APPEND PROPERTY COMPILE_OPTIONS ${options})
    set_property(SOURCE ${arg_SOURCES} PROPERTY COMPILE_DEFINITIONS WORKSHOP_EMULATES_GPU_THREADS ${arg_DEFINE})
  else()
    target_compile_options(${target} PRIVATE ${options})
    target_compile_definitions(${target} PRIVATE WORKSHOP_EMULATES_GPU_THREADS)
  endif()
endfunction()

# workshop_program(target SOURCE file OUTPUT folder INCLUDE folder… [MODELS target…]): builds one program from one .cu
# file and the models that it trains. Adds the checker's self-tests of that program (common/record/self_test.h),
# compiled with the program's own headers.
function(workshop_program target)
  cmake_parse_arguments(arg "" "SOURCE;OUTPUT" "INCLUDE;MODELS" ${ARGN})
  get_filename_component(name ${arg_SOURCE} NAME_WE)
  add_executable(${target} ${arg_SOURCE})
  target_link_libraries(${target} PRIVATE ${arg_MODELS} workshop_model)
  _workshop_source(${target} ${arg_SOURCE} ${arg_INCLUDE})
  set_target_properties(${target} PROPERTIES OUTPUT_NAME ${name} RUNTIME_OUTPUT_DIRECTORY ${arg_OUTPUT})
  get_filename_component(chapter ${arg_SOURCE} DIRECTORY)
  get_filename_component(chapter ${chapter} NAME)
  set(self_tests ${CMAKE_SOURCE_DIR}/checker/self_tests/${chapter}/${name})
  if(EXISTS ${self_tests}.cu)
    target_sources(${target} PRIVATE ${self_tests}.cu)
    _workshop_source(${target} ${self_tests}.cu ${arg_INCLUDE})
  endif()
  if(EXISTS ${self_tests}_rows.cu AND WORKSHOP_BACKEND STREQUAL "cpu" AND NOT WORKSHOP_SANITIZE)
    target_sources(${target} PRIVATE ${self_tests}_rows.cu ${self_tests}_rows_on_threads.cu)
    _workshop_source(${target} ${self_tests}_rows.cu ${arg_INCLUDE})
    _workshop_source(${target} ${self_tests}_rows_on_threads.cu ${arg_INCLUDE})
    workshop_emulates_gpu(${target} SOURCES ${self_tests}_rows_on_threads.cu DEFINE workshop=rows_on_threads)
    target_link_libraries(${target} PRIVATE workshop_emulated_gpu)
  endif()
endfunction()

# workshop_models(target SOURCE file INCLUDE folder… [MODELS target…] [OPTIONS …]): compiles the models of a chapter
# once for all programs, and once more as target_bf16 for --precision bf16.
function(workshop_models target)
  cmake_parse_arguments(arg "" "SOURCE" "INCLUDE;MODELS;OPTIONS" ${ARGN})
  foreach(precision "" _bf16)
    set(library ${target}${precision})
    add_library(${library} STATIC EXCLUDE_FROM_ALL ${arg_SOURCE})
    foreach(models ${arg_MODELS})
      target_link_libraries(${library} PUBLIC ${models}${precision})
    endforeach()
    target_link_libraries(${library} PUBLIC workshop_model${precision})
    _workshop_source(${library} ${arg_SOURCE} ${arg_INCLUDE})
    target_compile_options(${library} PRIVATE ${arg_OPTIONS})
  endforeach()
  target_compile_definitions(${target}_bf16 PRIVATE WORKSHOP_BF16)
endfunction()

# _workshop_files(result FILE OTHERS): the files that make up a chapter's FILE, "02_ddp/ddp.cu": itself, the headers of
# its chapter that it includes, and the .cu files of the same names that are no programs. If OTHERS is true, includes
# those of other chapters. The result is cached, because a thousand tests ask about the same few programs.
function(_workshop_files result file others)
  get_property(known GLOBAL PROPERTY WORKSHOP_FILES_${file}_${others})
  if(known)
    set(${result} ${known} PARENT_SCOPE)
    return()
  endif()
  set(folder ${CMAKE_SOURCE_DIR}/solutions)
  string(REGEX MATCH "^[^/]+/" chapter ${file})
  set(queue ${file})
  set(found)
  while(queue)
    list(POP_FRONT queue name)
    if(name IN_LIST found OR NOT EXISTS ${folder}/${name})
      continue()
    endif()
    list(APPEND found ${name})
    string(REGEX REPLACE "[.]h$" ".cu" source ${name})
    if(NOT source STREQUAL name AND EXISTS ${folder}/${source})
      file(STRINGS ${folder}/${source} main REGEX "^int main\\(")
      if(NOT main)  # else it is another program: 02_ddp/ddp.cu is no part of ddp_overlap
        list(APPEND queue ${source})
      endif()
    endif()
    file(STRINGS ${folder}/${name} lines REGEX "^#include \"[^\"]+\"")
    foreach(line IN LISTS lines)
      string(REGEX REPLACE "^#include \"(.+)\".*" "\\1" header "${line}")
      if(others OR header MATCHES "^${chapter}")
        list(APPEND queue ${header})
      endif()
    endforeach()
  endwhile()
  set_property(GLOBAL PROPERTY WORKSHOP_FILES_${file}_${others} ${found})
  set(${result} ${found} PARENT_SCOPE)
endfunction()

# _workshop_exercises(result FOLDER FILE…): the files of the solutions, of those given, whose exercises are in FOLDER: those
# with a TODO, and those with a WRITE region. If FOLDER is the repository's, which has the participant's files, a program
# with nothing but WRITE regions is there only at the blank level (./workshop reset). A FILE is "02_ddp/ddp.h".
function(_workshop_exercises result folder)
  set(exercises)
  foreach(file ${ARGN})
    get_property(known GLOBAL PROPERTY WORKSHOP_REGIONS_${file} SET)
    if(NOT known)
      file(STRINGS ${CMAKE_SOURCE_DIR}/solutions/${file} lines REGEX "^ *// (TODO|WRITE) [0-9]")
      string(REGEX MATCHALL "// (TODO|WRITE)" lines "${lines}")
      list(REMOVE_DUPLICATES lines)
      set_property(GLOBAL PROPERTY WORKSHOP_REGIONS_${file} "${lines}")
    endif()
    get_property(regions GLOBAL PROPERTY WORKSHOP_REGIONS_${file})
    if(regions STREQUAL "// WRITE" AND folder STREQUAL CMAKE_SOURCE_DIR)
      file(GLOB regions CONFIGURE_DEPENDS ${folder}/${file})
    endif()
    if(regions)
      list(APPEND exercises ${file})
    endif()
  endforeach()
  set(${result} ${exercises} PARENT_SCOPE)
endfunction()

# _workshop_sources(result chapter): all sources of a chapter's solutions, "02_ddp/ddp.h".
function(_workshop_sources result chapter)
  file(GLOB_RECURSE sources RELATIVE ${CMAKE_SOURCE_DIR}/solutions CONFIGURE_DEPENDS
       ${CMAKE_SOURCE_DIR}/solutions/${chapter}/*.cu ${CMAKE_SOURCE_DIR}/solutions/${chapter}/*.h)
  list(FILTER sources EXCLUDE REGEX "/[.]")  # of editors
  set(${result} ${sources} PARENT_SCOPE)
endfunction()

# _workshop_place(result FILE FOLDER): the path of FILE, "02_ddp/ddp.cu": in FOLDER, which holds the exercises, if it
# is one, else in the solutions.
function(_workshop_place result file folder)
  _workshop_exercises(exercise ${folder} ${file})
  if(NOT exercise)
    set(folder ${CMAKE_SOURCE_DIR}/solutions)
  endif()
  set(${result} ${folder}/${file} PARENT_SCOPE)
endfunction()

# _workshop_include(result chapter): the include folders of a chapter's exercises, which look for "02_ddp/ddp.h" among
# the participant's files of this chapter, then among the solutions. -I with the repository's folder would also find the
# participant's files of earlier chapters, which only -DWORKSHOP_BUILD_ON=mine wants. Otherwise, a generated folder has
# a one-line header for each exercise of this chapter.
function(_workshop_include result chapter)
  if(WORKSHOP_BUILD_ON STREQUAL "mine")
    set(${result} ${CMAKE_SOURCE_DIR} ${CMAKE_SOURCE_DIR}/solutions PARENT_SCOPE)
    return()
  endif()
  set(folder ${CMAKE_BINARY_DIR}/exercises/${chapter})
  _workshop_sources(sources ${chapter})
  _workshop_exercises(exercises ${CMAKE_SOURCE_DIR} ${sources})
  list(FILTER exercises INCLUDE REGEX "[.]h$")
  foreach(header ${exercises})
    file(CONFIGURE OUTPUT ${folder}/${header} CONTENT "#include \"${CMAKE_SOURCE_DIR}/${header}\"\n" @ONLY)
  endforeach()
  set(${result} ${folder} ${CMAKE_SOURCE_DIR}/solutions PARENT_SCOPE)
endfunction()

# _workshop_models(result FILE OWN OTHERS): the libraries of models that a program or a library of models links to.
# Those of its own chapter are called OWN_CHAPTER_models, those of earlier chapters OTHERS_CHAPTER_models, with the
# prefixes OWN and OTHERS.
function(_workshop_models result file own others)
  string(REGEX REPLACE "/.*" "" chapter ${file})
  _workshop_files(files ${file} TRUE)
  list(REMOVE_ITEM files ${file})
  list(FILTER files INCLUDE REGEX "models[.]cu$")
  set(libraries)
  foreach(models ${files})
    string(REGEX REPLACE "/.*" "" of ${models})
    if(of STREQUAL chapter)
      list(APPEND libraries ${own}${of}_models)
    else()
      list(APPEND libraries ${others}${of}_models)
    endif()
  endforeach()
  set(${result} ${libraries} PARENT_SCOPE)
endfunction()

# workshop_twin(target): builds the same program for --precision bf16: target_bf16, in the same folder as PROGRAM_bf16.
function(workshop_twin target)
  foreach(property SOURCES INCLUDE_DIRECTORIES RUNTIME_OUTPUT_DIRECTORY COMPILE_OPTIONS LINK_LIBRARIES OUTPUT_NAME
          MANUALLY_ADDED_DEPENDENCIES)
    get_target_property(${property} ${target} ${property})
  endforeach()
  add_executable(${target}_bf16 ${SOURCES})
  if(MANUALLY_ADDED_DEPENDENCIES)
    add_dependencies(${target}_bf16 ${MANUALLY_ADDED_DEPENDENCIES})
  endif()
  target_include_directories(${target}_bf16 BEFORE PRIVATE ${INCLUDE_DIRECTORIES})
  target_compile_options(${target}_bf16 PRIVATE ${COMPILE_OPTIONS})
  target_compile_definitions(${target}_bf16 PRIVATE WORKSHOP_BF16)
  list(TRANSFORM LINK_LIBRARIES REPLACE "_models?$" "\\0_bf16")
  target_link_libraries(${target}_bf16 PRIVATE ${LINK_LIBRARIES})
  set_target_properties(${target}_bf16 PROPERTIES OUTPUT_NAME ${OUTPUT_NAME}_bf16
                        RUNTIME_OUTPUT_DIRECTORY ${RUNTIME_OUTPUT_DIRECTORY})
endfunction()

# workshop_bf16(01_single_gpu mlp gpt): builds these programs of a chapter for --precision bf16 too. Those of the
# exercises are built only on request.
function(workshop_bf16 chapter)
  foreach(name ${ARGN})
    workshop_twin(${chapter}_${name})
    set_target_properties(${chapter}_${name}_bf16 PROPERTIES EXCLUDE_FROM_ALL TRUE)
    if(NOT WORKSHOP_PREBUILT)
      workshop_twin(solution_${chapter}_${name})
      add_dependencies(programs solution_${chapter}_${name}_bf16)
    endif()
  endforeach()
endfunction()

# workshop_chapter(02_ddp ddp ddp_overlap): builds the solution and the exercise of each program of a chapter. The
# target `programs` builds those of all chapters, without the tests.
add_custom_target(programs)
# -Wno-restrict: GCC 12 warns about overlapping copies in its own std::string.
set(WORKSHOP_WARNINGS -Wall -Wextra -Wformat-security -Wno-restrict)
# In a program with a TODO, some variables are not used yet. An index beyond the end of a std::vector ends the program.
set(WORKSHOP_EXERCISE_WARNINGS ${WORKSHOP_WARNINGS} -Wno-unused -Wno-unused-parameter -D_GLIBCXX_ASSERTIONS)
function(workshop_chapter chapter)
  set(others solution_)
  if(WORKSHOP_BUILD_ON STREQUAL "mine")
    set(others "")
  endif()
  _workshop_include(include ${chapter})
  set(exercise $<$<COMPILE_LANGUAGE:CXX>:${WORKSHOP_EXERCISE_WARNINGS}>
               $<$<COMPILE_LANGUAGE:CUDA>:--diag-suppress=177,550>)  # variables never referenced, or set but never used
  set(solution $<$<COMPILE_LANGUAGE:CXX>:${WORKSHOP_WARNINGS}>)
  _workshop_sources(models ${chapter})
  list(FILTER models INCLUDE REGEX "models[.]cu$")
  if(models)
    _workshop_models(earlier ${models} "" "${others}")
    _workshop_place(source ${models} ${CMAKE_SOURCE_DIR})
    workshop_models(${chapter}_models SOURCE ${source} INCLUDE ${include} MODELS ${earlier} OPTIONS ${exercise})
    if(NOT WORKSHOP_PREBUILT)
      _workshop_models(earlier ${models} solution_ solution_)
      workshop_models(solution_${chapter}_models SOURCE ${CMAKE_SOURCE_DIR}/solutions/${models}
                      INCLUDE ${CMAKE_SOURCE_DIR}/solutions MODELS ${earlier} OPTIONS ${solution})
    endif()
  endif()
  foreach(name ${ARGN})
    set_property(GLOBAL APPEND PROPERTY WORKSHOP_PROGRAMS ${chapter}/${name})
    _workshop_models(models ${chapter}/${name}.cu "" "${others}")
    _workshop_place(source ${chapter}/${name}.cu ${CMAKE_SOURCE_DIR})
    workshop_program(${chapter}_${name} SOURCE ${source} MODELS ${models} INCLUDE ${include}
                     OUTPUT ${CMAKE_BINARY_DIR}/${chapter})
    target_compile_options(${chapter}_${name} PRIVATE ${exercise})
    add_dependencies(programs ${chapter}_${name})
    if(NOT WORKSHOP_PREBUILT)
      _workshop_models(models ${chapter}/${name}.cu solution_ solution_)
      workshop_program(solution_${chapter}_${name} SOURCE ${CMAKE_SOURCE_DIR}/solutions/${chapter}/${name}.cu
                       MODELS ${models} INCLUDE ${CMAKE_SOURCE_DIR}/solutions
                       OUTPUT ${CMAKE_BINARY_DIR}/solutions/${chapter})
      target_compile_options(solution_${chapter}_${name} PRIVATE ${solution})
      add_dependencies(programs solution_${chapter}_${name})
    endif()
  endforeach()
endfunction()

# The sanitizers' options in tests. Open MPI is not built with them, so ignore their reports about it. Only the full
# stack (fast_unwind_on_malloc=0) shows that a leak is Open MPI's.
set(_supp ${CMAKE_SOURCE_DIR}/tests/sanitizers)
set(WORKSHOP_SANITIZER_ENVIRONMENT "TSAN_OPTIONS=ignore_noninstrumented_modules=1:suppressions=${_supp}/tsan.supp"
    "ASAN_OPTIONS=fast_unwind_on_malloc=0"
    "LSAN_OPTIONS=suppressions=${_supp}/lsan.supp:print_suppressions=0" "UBSAN_OPTIONS=print_stacktrace=1")

# Factor for all time limits of tests. On GPUs, a job takes seconds to create contexts and communicators.
set(WORKSHOP_PATIENCE 1)
if(WORKSHOP_BACKEND STREQUAL "cuda")
  set(WORKSHOP_PATIENCE 4)
endif()

# The largest number of ranks that a test starts at a time: the largest number after -n, or 8 if its command has no -n.
function(_workshop_most_ranks result command)
  string(REGEX MATCHALL ";-n;[0-9]+" numbers ";${command}")
  string(REGEX MATCHALL "[0-9]+" numbers "${numbers}")
  if(NOT numbers)
    set(numbers 8)
  endif()
  list(SORT numbers COMPARE NATURAL ORDER DESCENDING)
  list(GET numbers 0 most)
  set(${result} ${most} PARENT_SCOPE)
endfunction()

# workshop_test(name COMMAND … [RANKS n] [LABELS …] [TIMEOUT s] [ENVIRONMENT …] [STATUS n] [MOST_RANKS n]
# [CPU_ONLY reason]): adds a test, which runs in a working directory of its own.
#   RANKS        starts the command on that many ranks
#   STATUS       the expected exit status
#   CPU_ONLY     skips the test on the cuda backend and prints the reason; so does an ENVIRONMENT with a setting of the
#                cpu backend
#   MOST_RANKS   GPU slots that the test takes, one per rank, if ctest knows of GPUs (see ./workshop test)
function(workshop_test name)
  cmake_parse_arguments(arg "" "RANKS;TIMEOUT;STATUS;MOST_RANKS;CPU_ONLY" "COMMAND;LABELS;ENVIRONMENT" ${ARGN})
  set(command ${arg_COMMAND})
  if(arg_RANKS)
    set(command ${CMAKE_SOURCE_DIR}/tools/launch -n ${arg_RANKS} -- ${command})
  endif()
  if(arg_STATUS)
    set(command ${CMAKE_SOURCE_DIR}/tests/expect_status ${arg_STATUS} ${command})
  endif()
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 300)  # the test takes a few seconds on a machine that is not busy
  endif()
  math(EXPR arg_TIMEOUT "${WORKSHOP_PATIENCE} * ${arg_TIMEOUT}")
  math(EXPR deadline "${WORKSHOP_PATIENCE} * 20")
  if("${arg_ENVIRONMENT}" MATCHES "(WORKSHOP_SLOW|WORKSHOP_BLOCKING|WORKSHOP_ORDER|WORKSHOP_SIMULATE|WORKSHOP_DRIVER_LOCK|WORKSHOP_DEVICE_[A-Z]+)=")
    set(arg_CPU_ONLY "${CMAKE_MATCH_1} is a setting of the cpu backend")
  endif()
  if(WORKSHOP_BACKEND STREQUAL "cuda" AND arg_CPU_ONLY)
    set(command sh -c "echo \"$0\" && exit 77" "skipped on the cuda backend: ${arg_CPU_ONLY}")
  endif()
  if(NOT arg_MOST_RANKS)
    _workshop_most_ranks(arg_MOST_RANKS "${command}")
  endif()
  list(POP_FRONT command program)
  if(TARGET ${program})  # add_test() resolves a target only as the first word of its command
    set(program $<TARGET_FILE:${program}>)
  endif()
  string(MAKE_C_IDENTIFIER ${name} folder)
  file(MAKE_DIRECTORY ${CMAKE_BINARY_DIR}/tests/run/${folder})
  add_test(NAME ${name} COMMAND ${CMAKE_SOURCE_DIR}/tests/on_gpus ${program} ${command}
           WORKING_DIRECTORY ${CMAKE_BINARY_DIR}/tests/run/${folder})
  set_tests_properties(${name} PROPERTIES TIMEOUT ${arg_TIMEOUT} LABELS "${arg_LABELS}" SKIP_RETURN_CODE 77
                       RESOURCE_GROUPS "${arg_MOST_RANKS},gpus:1"
                       ENVIRONMENT "WORKSHOP_BACKEND=${WORKSHOP_BACKEND};WORKSHOP_TIMEOUT=${deadline};${WORKSHOP_SANITIZER_ENVIRONMENT};${arg_ENVIRONMENT}")
endfunction()
