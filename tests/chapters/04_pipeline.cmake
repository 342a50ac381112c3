# Chapter 04: a pipeline learns what one rank learns, holds what the README says, and idles as long as it must.
set(pipeline $<TARGET_FILE:solution_04_pipeline_pipeline>)
set(mlp $<TARGET_FILE:solution_01_single_gpu_mlp>)
set(launch ${CMAKE_SOURCE_DIR}/tools/launch)
set(run_then ${CMAKE_SOURCE_DIR}/tests/run_then)
foreach(target check_memory check_bubble)
  add_executable(${target} ${CMAKE_CURRENT_LIST_DIR}/${target}.cpp ${CMAKE_SOURCE_DIR}/tools/run_record.cpp)
  target_include_directories(${target} PRIVATE ${CMAKE_SOURCE_DIR})
  target_link_libraries(${target} PRIVATE nlohmann_json::nlohmann_json)
  target_compile_options(${target} PRIVATE ${WORKSHOP_WARNINGS})
endforeach()

# ---- PyTorch's losses, on two ranks with four micro-batches --------------------------------------------------------
foreach(name single_default single_gelu single_adamw single_odd_widths single_short_batch)
  set(golden ${CMAKE_SOURCE_DIR}/tests/golden/${name}.json)
  file(READ ${golden} text)
  string(JSON length LENGTH "${text}" options command)
  set(options)
  if(length GREATER 0)
    math(EXPR last "${length} - 1")
    foreach(index RANGE ${last})
      string(JSON word GET "${text}" options command ${index})
      list(APPEND options ${word})
    endforeach()
  endif()
  foreach(schedule gpipe 1f1b)
    workshop_test(golden.04_pipeline.${name}.${schedule} LABELS golden
                  COMMAND ${run_then} ${launch} -n 2 -- ${pipeline} ${options} --schedule ${schedule} --record run.jsonl
                          -- $<TARGET_FILE:check_golden> ${golden} run.jsonl)
  endforeach()
endforeach()

# ---- parallel equals serial ----------------------------------------------------------------------------------------
# With one micro-batch every sum is formed as on one rank: not a bit differs. M micro-batches add up the same n = 96·3
# products in another order, M sums of n/M each: as in chapter 02, after T steps two runs differ by at most
# T·lr·2·n·2⁻²⁴·X in a parameter, where X is the largest product, and by 2·n·2⁻²⁴·X in a loss. Here T = 20, lr = 0.01 and
# X < 10: 7·10⁻⁵ and 3·10⁻⁴ in the worst case. Rounding errors have either sign, so that they grow with √n: the tests
# ask for 2·10⁻⁵ of both. Found: 2·10⁻⁷.
set(bound 2e-5)
set(network --layers 6,9,8,7,5,4,6,5,3 --activation gelu --samples 960 --epochs 2 --log-every 0 --batch-size 96)
set(serial 1 ${mlp} ${network})
foreach(ranks 1 2 3 4 8)
  same_training(solution.04.one_micro_batch.${ranks} BOUND 0 EXPECTED ${serial}
                FOUND ${ranks} ${pipeline} ${network} --micro-batches 1)
  foreach(schedule gpipe 1f1b)
    same_training(solution.04.${schedule}.${ranks} BOUND ${bound} EXPECTED ${serial}
                  FOUND ${ranks} ${pipeline} ${network} --micro-batches 6 --schedule ${schedule})
  endforeach()
endforeach()
foreach(ranks 1 2 4)
  same_training(solution.04.interleaved.${ranks} BOUND ${bound} EXPECTED ${serial}
                FOUND ${ranks} ${pipeline} ${network} --micro-batches 8 --schedule interleaved
                      --partition parameters)
endforeach()
same_training(solution.04.interleaved_four_chunks BOUND ${bound} EXPECTED ${serial}
              FOUND 2 ${pipeline} ${network} --micro-batches 6 --schedule interleaved --chunks 4)
# The last batch of an epoch has 3 rows for 8 micro-batches: five of them have none.
set(short --layers 6,5,4,2 --samples 99 --epochs 3 --batch-size 32)
foreach(schedule gpipe 1f1b interleaved)
  set(stages 3)
  if(schedule STREQUAL interleaved)
    set(stages 1)
  endif()
  same_training(solution.04.empty_micro_batches.${schedule} BOUND ${bound} EXPECTED 1 ${mlp} ${short}
                FOUND ${stages} ${pipeline} ${short} --micro-batches 8 --schedule ${schedule})
endforeach()
# The schedule changes nothing that is computed but the order of sums; recomputation not even that.
foreach(schedule gpipe 1f1b interleaved)
  set(piped 2 ${pipeline} ${network} --schedule ${schedule})
  same_training(solution.04.recompute.${schedule} BOUND 0 EXPECTED ${piped} FOUND ${piped} --recompute)
endforeach()

# ---- memory, as in the README: 8 layers of width 8, 32 rows --------------------------------------------------------
# memory_04(name RANKS n OPTIONS … EXPECT rank kind bytes …)
function(memory_04 name)
  cmake_parse_arguments(arg "" "RANKS" "OPTIONS;EXPECT" ${ARGN})
  workshop_test(solution.04.memory.${name} LABELS solution
                COMMAND ${run_then} ${run_then} ${launch} -n ${arg_RANKS} -- ${pipeline} --layers 8,8,8,8,8,8,8,8,8
                        ${arg_OPTIONS} --record run.jsonl -- $<TARGET_FILE:check_memory> run.jsonl ${arg_EXPECT}
                        -- $<TARGET_FILE:check_step> run.jsonl)
endfunction()
# Four stages of two layers, 8 micro-batches of 4 rows; 128 bytes are one width of a micro-batch. Of each stage: sets of
# activations, inputs, and messages on their way.
set(gpipe_activations 8 8 8 8)
set(gpipe_inputs 0 8 8 8)
set(gpipe_messages 2 4 4 2)
set(1f1b_activations 4 3 2 1)
set(1f1b_inputs 0 4 3 2)
set(1f1b_messages 1 3 3 2)
set(recompute_activations 1 1 1 1)
set(recompute_inputs 0 4 3 2)
set(recompute_messages 3 5 5 2)
set(options_gpipe --schedule gpipe)
set(options_recompute --recompute)
foreach(kind gpipe 1f1b recompute)
  set(expect)
  foreach(stage 0 1 2 3)
    foreach(what activations inputs messages)
      list(GET ${kind}_${what} ${stage} ${what})
    endforeach()
    math(EXPR activations "128 * (2 * ${activations} + 2 + ${inputs})")
    math(EXPR buckets "128 * ${messages}")
    list(APPEND expect ${stage} activations ${activations} ${stage} buckets ${buckets} ${stage} parameters 576)
  endforeach()
  memory_04(${kind} RANKS 4 OPTIONS --micro-batches 8 ${options_${kind}} EXPECT ${expect})
endforeach()
# Two stages of two chunks of two layers, 4 micro-batches of 8 rows, u = 256 bytes. Of the chunks of stage 0, 4 and 2
# micro-batches are in flight at most, of those of stage 1, 3 and 1; inputs: 0 and 2, 4 and 2.
memory_04(interleaved RANKS 2 OPTIONS --schedule interleaved
       EXPECT 0 activations 4608 0 buckets 1024 1 activations 4608 1 buckets 1280)

# ---- the ledger, as in the README ----------------------------------------------------------------------------------
# ledger_04(name ranks options RANK OP CALLS BYTES …)
function(ledger_04 name ranks options)
  workshop_test(solution.04.ledger.${name} LABELS solution
                COMMAND ${run_then} ${launch} -n ${ranks} -- ${pipeline} --layers 8,8,8,8,8 ${options} --record run.jsonl
                        -- $<TARGET_FILE:check_ledger> run.jsonl ${ARGN})
endfunction()
# 32 steps of 8 micro-batches send 256 messages over each boundary and back, 32·32·8 floats each way; the losses are 32
# floats from the last rank to the first.
foreach(schedule gpipe 1f1b)
  ledger_04(${schedule} 4 "--micro-batches;8;--schedule;${schedule}"
            0 ncclSend 256 32768 0 ncclRecv 257 32896 1 ncclSend 512 65536 1 ncclRecv 512 65536
            2 ncclSend 512 65536 2 ncclRecv 512 65536 3 ncclSend 257 32896 3 ncclRecv 256 32768)
endforeach()
ledger_04(recompute 2 "--recompute" 0 ncclSend 128 32768 0 ncclRecv 129 32896 1 ncclSend 129 32896 1 ncclRecv 128 32768)
# Three boundaries between four parts, all of them between the two ranks.
ledger_04(interleaved 2 "--schedule;interleaved"
          0 ncclSend 384 98304 0 ncclRecv 385 98432 1 ncclSend 385 98432 1 ncclRecv 384 98304)
ledger_04(one_rank 1 "")

# ---- the bubble ----------------------------------------------------------------------------------------------------
# Measured with 15 ms a slot, within 3 percentage points of (K-1)/(vM+K-1): see the README.
# bubble_04(name stages micro_batches chunks OPTIONS …)
function(bubble_04 name stages micro_batches chunks)
  math(EXPR above "10000 * (${stages} - 1)")
  math(EXPR share "${above} / (${chunks} * ${micro_batches} + ${stages} - 1)")
  string(LENGTH "000${share}" length)
  math(EXPR start "${length} - 4")
  string(SUBSTRING "000${share}" ${start} 4 digits)
  workshop_test(solution.04.bubble.${name}.${stages}x${micro_batches} MEASURES LABELS solution
                COMMAND ${run_then} ${launch} -n ${stages} -- ${pipeline} --simulate-compute 15 --max-steps 4
                        --micro-batches ${micro_batches} ${ARGN} --record run.jsonl
                        -- $<TARGET_FILE:check_bubble> run.jsonl 0.${digits} 0.03)
endfunction()
foreach(stages 2 4 8)
  foreach(micro_batches 4 8 16)
    bubble_04(1f1b ${stages} ${micro_batches} 1)
  endforeach()
endforeach()
bubble_04(gpipe 4 8 1 --schedule gpipe)
bubble_04(interleaved 4 8 2 --schedule interleaved)
bubble_04(interleaved 2 4 3 --schedule interleaved --chunks 3)

# ---- messages travel behind the computation ------------------------------------------------------------------------
foreach(schedule gpipe 1f1b interleaved)
  workshop_test(solution.04.overlap_is_real.${schedule} LABELS solution
                COMMAND ${run_then} ${launch} -n 2 -- ${pipeline} --schedule ${schedule} --simulate-compute 5
                        --max-steps 2 --timeline timeline.json
                        -- $<TARGET_FILE:check_overlap> timeline.json ncclSend)
endforeach()
# Every group of messages takes 5 ms longer. GPipe hides that but for the first message each way, 2 · 5 ms in 18 slots of
# 20 ms, which makes the bubble 13.5 % instead of 11.1 %; if each slot had to wait, it would be 29 %.
workshop_test(solution.04.gpipe_hides_messages MEASURES LABELS solution ENVIRONMENT WORKSHOP_SLOW=collectives
              COMMAND ${run_then} ${launch} -n 2 -- ${pipeline} --schedule gpipe --simulate-compute 20 --micro-batches 8
                      --max-steps 3 --record run.jsonl -- $<TARGET_FILE:check_bubble> run.jsonl 0.135 0.06)

# ---- a host that waits for each call -------------------------------------------------------------------------------
set(blocking LABELS solution ENVIRONMENT CUDA_LAUNCH_BLOCKING=1)
workshop_test(solution.04.launch_blocking.gpipe ${blocking}
              COMMAND ${launch} -n 4 -- ${pipeline} ${network} --schedule gpipe --max-steps 4)
foreach(schedule 1f1b interleaved)
  workshop_test(solution.04.launch_blocking.${schedule} ${blocking}
                COMMAND ${CMAKE_CURRENT_LIST_DIR}/one_line 2
                        "^error: CUDA_LAUNCH_BLOCKING is '1'. expected 0 or none, because --schedule ${schedule} "
                        ${launch} -n 4 -t 20 -- ${pipeline} ${network} --micro-batches 8 --schedule ${schedule})
endforeach()

# ---- --print needs no ranks ----------------------------------------------------------------------------------------
workshop_test(solution.04.print LABELS solution
              COMMAND ${CMAKE_SOURCE_DIR}/tools/expect_status -e "stage 1 .  \\. F0 F1  \\. B0 F2 B1 F3 B2  \\. B3  \\."
                      -e "12 slots.*a bubble of 33.3 % of the time, 50.0 % of the ideal" 0
                      ${pipeline} --print --stages 3)

# ---- bad input -----------------------------------------------------------------------------------------------------
foreach(ranks 1 4)
  set(bad solution.04.bad.${ranks})
  set(run RANKS ${ranks} PROGRAM ${pipeline} --layers 4,4,4,4,4)
  bad_input(${bad}.divisor "--micro-batches is '5'. expected a divisor of --batch-size, 32" ${run} --micro-batches 5)
  bad_input(${bad}.micro_batches "--micro-batches is '0'. expected a whole number" ${run}
            --micro-batches 0)
  bad_input(${bad}.schedule "--schedule is 'zb'. expected gpipe, 1f1b, interleaved" ${run} --schedule zb)
  bad_input(${bad}.chunks "--chunks is '2'. expected 1 unless --schedule is interleaved" ${run} --chunks 2)
  bad_input(${bad}.stages "--stages is '3'. expected the number of ranks, ${ranks}" ${run} --stages 3)
  bad_input(${bad}.simulate "--simulate-compute is '-1'. expected a number greater than 0" ${run}
            --simulate-compute=-1)
  bad_input(${bad}.layers "--layers is '4,4,4,4,4', 4 layers for ${ranks} stages of 8. expected at least" ${run}
            --schedule interleaved --chunks 8)
endforeach()
bad_input(solution.04.bad.too_few_layers "--layers is '6,4,2', 2 layers for 4 stages of 1. expected at least 4 layers"
          RANKS 4 PROGRAM ${pipeline})
bad_input(solution.04.bad.interleaved "--micro-batches is '2'. expected a multiple of the 4 stages" RANKS 4
          PROGRAM ${pipeline} --layers 4,4,4,4,4,4,4,4,4 --schedule interleaved --micro-batches 2)
bad_input(solution.04.bad.print "--micro-batches is '6'. expected a multiple of the 4 stages" RANKS 1
          PROGRAM ${pipeline} --print --stages 4 --schedule interleaved --micro-batches 6)
