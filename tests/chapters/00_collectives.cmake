# Chapter 00: every program checks its own results and ends with status 1 when they are wrong; what it sends is compared
# with the README's formulas here.
add_executable(check_ledger ${CMAKE_CURRENT_LIST_DIR}/check_ledger.cpp ${CMAKE_SOURCE_DIR}/tools/run_record.cpp)
target_include_directories(check_ledger PRIVATE ${CMAKE_SOURCE_DIR})
target_link_libraries(check_ledger PRIVATE nlohmann_json::nlohmann_json)
add_executable(check_bandwidth ${CMAKE_CURRENT_LIST_DIR}/check_bandwidth.cpp)
target_link_libraries(check_bandwidth PRIVATE nlohmann_json::nlohmann_json)
foreach(target check_ledger check_bandwidth)
  target_compile_options(${target} PRIVATE ${WORKSHOP_WARNINGS})
endforeach()

set(folder ${CMAKE_BINARY_DIR}/tests/chapters/00_collectives)
file(MAKE_DIRECTORY ${folder})

# solution_00(name program ranks OPTIONS … LEDGER rank op calls bytes … THEN command … ENVIRONMENT …): runs the program,
# then checks its ledger, then runs a further check.
function(solution_00 name program ranks)
  cmake_parse_arguments(arg "" "" "OPTIONS;LEDGER;THEN;ENVIRONMENT" ${ARGN})
  set(run_then ${CMAKE_SOURCE_DIR}/tests/run_then)
  set(record ${folder}/${name}.${ranks}.jsonl)
  set(command ${run_then} ${CMAKE_SOURCE_DIR}/tools/launch -n ${ranks} --
      $<TARGET_FILE:solution_00_collectives_${program}> ${arg_OPTIONS} --record ${record}
      -- $<TARGET_FILE:check_ledger> ${record} ${arg_LEDGER})
  if(arg_THEN)
    set(command ${run_then} ${command} -- ${arg_THEN})
  endif()
  workshop_test(solution.00.${name}.${ranks} LABELS solution ENVIRONMENT ${arg_ENVIRONMENT} COMMAND ${command})
endfunction()

# ---- collectives: `count` floats in each call but all-reduce's, which has a row of them a rank ---------------------
function(solution_collectives ranks count root)
  math(EXPR bytes "4 * ${count}")
  math(EXPR twice "2 * ${bytes}")
  math(EXPR all "${ranks} * ${bytes}")
  set(ledger all ncclBroadcast 1 ${bytes} all ncclReduce 1 ${bytes} all ncclAllGather 2 ${twice}
      all ncclReduceScatter 2 ${twice} all ncclAllReduce 1 ${all})
  math(EXPR last "${ranks} - 1")
  foreach(rank RANGE ${last})
    math(EXPR calls "${ranks} + 1")
    if(rank EQUAL root)
      math(EXPR calls "2 * ${ranks} + 1")
    endif()
    math(EXPR sent "${calls} * ${bytes}")
    list(APPEND ledger ${rank} ncclSend ${calls} ${sent} ${rank} ncclRecv ${calls} ${sent})
  endforeach()
  solution_00(collectives.count${count}.root${root} collectives ${ranks} OPTIONS --count ${count} --root ${root}
              LEDGER ${ledger})
endfunction()
foreach(ranks 1 2 3 4 8)
  solution_collectives(${ranks} 2 0)
endforeach()
solution_collectives(3 1 2)
solution_collectives(4 64 1)

# ---- ring_allreduce: of the vector, every rank keeps one chunk to itself in each of the two halves -----------------
function(chunk_size result index count ranks)
  math(EXPR chunk "${index} % ${ranks}")
  math(EXPR size "${count} / ${ranks}")
  math(EXPR longer "${count} % ${ranks}")
  if(chunk LESS longer)
    math(EXPR size "${size} + 1")
  endif()
  set(${result} ${size} PARENT_SCOPE)
endfunction()

function(solution_ring ranks count)
  math(EXPR whole "4 * ${count}")
  math(EXPR steps "2 * (${ranks} - 1)")
  set(ledger all ncclAllReduce 1 ${whole})
  math(EXPR last "${ranks} - 1")
  foreach(rank RANGE ${last})
    foreach(offset 0 1 2)
      math(EXPR index "${rank} + ${offset}")
      chunk_size(size${offset} ${index} ${count} ${ranks})
    endforeach()
    math(EXPR sent "2 * ${whole} - 4 * (${size1} + ${size2})")
    math(EXPR received "2 * ${whole} - 4 * (${size0} + ${size1})")
    list(APPEND ledger ${rank} ncclSend ${steps} ${sent} ${rank} ncclRecv ${steps} ${received})
  endforeach()
  solution_00(ring.count${count} ring_allreduce ${ranks} OPTIONS --count ${count} LEDGER ${ledger})
endfunction()
foreach(ranks 1 2 3 4 8)
  solution_ring(${ranks} 1000)
endforeach()
solution_ring(3 100001)
solution_ring(8 5)

# ---- bandwidth: 4, 16, 64, 256 and 1,024 KiB, each 3 times to warm up and twice on the clock -----------------------
# The program holds the times that it measures against those that the host waits. Slow collectives make both long beside
# the time that a busy machine takes to wake a host.
set(slow)
if(WORKSHOP_BACKEND STREQUAL "cpu")
  set(slow ENVIRONMENT WORKSHOP_SLOW=collectives)
endif()
function(solution_bandwidth op ranks factor)
  math(EXPR bytes "(3 + 2) * (4 + 16 + 64 + 256 + 1024) * 1024")
  math(EXPR part "${bytes} / ${ranks}")
  set(calls_all_reduce all ncclAllReduce 25 ${bytes})
  set(calls_all_gather all ncclAllGather 25 ${part})
  set(calls_reduce_scatter all ncclReduceScatter 25 ${part})
  set(calls_broadcast all ncclBroadcast 25 ${bytes})
  set(calls_send_recv all ncclSend 25 ${bytes} all ncclRecv 25 ${bytes})
  set(json ${folder}/${op}.${ranks}.json)
  solution_00(bandwidth.${op} bandwidth ${ranks} OPTIONS --op ${op} --max-mib 1 --iterations 2 --json ${json}
              ${slow} LEDGER ${calls_${op}}
              THEN $<TARGET_FILE:check_bandwidth> ${json} 5 ${factor})
endfunction()
solution_bandwidth(all_reduce 1 0)
solution_bandwidth(all_reduce 2 1)
solution_bandwidth(all_reduce 4 1.5)
solution_bandwidth(all_gather 2 0.5)
solution_bandwidth(all_gather 4 0.75)
solution_bandwidth(reduce_scatter 4 0.75)
solution_bandwidth(broadcast 3 1)
solution_bandwidth(send_recv 1 1)
solution_bandwidth(send_recv 3 1)

# ---- bad input: status 2 and a line that names the option, the value and what would be accepted --------------------
# A ";" in the message would divide a CMake list: "." stands for it.
function(bad_input_00 name message program)
  workshop_test(solution.00.bad_input.${name} LABELS solution
                COMMAND ${CMAKE_SOURCE_DIR}/tools/expect_status -e ${message} 2 ${CMAKE_SOURCE_DIR}/tools/launch -n 2 --
                $<TARGET_FILE:solution_00_collectives_${program}> ${ARGN})
endfunction()
bad_input_00(root_outside "--root is '2'. expected .* 0 to 1" collectives --root 2)
bad_input_00(root_negative "--root is '-1'. expected" collectives --root=-1)
bad_input_00(count_zero "--count is '0'. expected .* from 1 to 64" collectives --count 0)
bad_input_00(count_not_a_number "--count is 'x'. expected a whole number" ring_allreduce --count x)
bad_input_00(unknown_op "--op is 'all'. expected all_reduce, all_gather" bandwidth --op all)
bad_input_00(min_above_max "--min-kib is '4096'. expected at most .* 1024 KiB" bandwidth --min-kib 4096 --max-mib 1)
bad_input_00(no_iterations "--iterations is '0'. expected" bandwidth --iterations 0)
bad_input_00(json_not_writable "--json is '/nowhere/x.json', which cannot be written: No such file" bandwidth --json /nowhere/x.json)
bad_input_00(training_option "--lr" collectives --lr 0.1)
