# Chapter 03: the ranks do together what one process does alone, in the same order: not a bit may differ (on GPUs, no
# more than WORKSHOP_SAME_BITS).
set(mlp $<TARGET_FILE:solution_01_single_gpu_mlp>)
set(model_parallel $<TARGET_FILE:solution_03_model_parallel_model_parallel>)
set(launch ${CMAKE_SOURCE_DIR}/tools/launch)
set(run_then ${CMAKE_SOURCE_DIR}/tests/run_then)

foreach(ranks 1 2)
  workshop_test(golden.03.${ranks} LABELS golden
                COMMAND ${run_then} ${launch} -n ${ranks} -- ${model_parallel} --record run.jsonl
                        -- $<TARGET_FILE:check_golden> ${CMAKE_SOURCE_DIR}/tests/golden/single_default.json run.jsonl)
endforeach()

# equals_mlp(name RANKS n [PARTITION how] OPTIONS …): the same options, and so the same batches, on one GPU and on n ranks.
function(equals_mlp name)
  cmake_parse_arguments(arg "" "RANKS;PARTITION" "OPTIONS" ${ARGN})
  if(NOT arg_PARTITION)
    set(arg_PARTITION uniform)
  endif()
  set(options ${arg_OPTIONS} --log-every 0)
  workshop_test(solution.03.${name}.${arg_RANKS} LABELS solution
                COMMAND ${run_then} ${run_then} ${launch} -n ${arg_RANKS} -- ${model_parallel} ${options}
                           --partition ${arg_PARTITION} --record found.jsonl
                        -- ${mlp} ${options} --record expected.jsonl
                        -- $<TARGET_FILE:compare_training> expected.jsonl found.jsonl ${WORKSHOP_SAME_BITS})
endfunction()
# Two epochs whose last batch has 20 rows.
set(training --samples 500 --epochs 2)
foreach(ranks 1 2 3 4 8)
  equals_mlp(relu RANKS ${ranks} OPTIONS ${training} --layers 16,24,9,24,17,8,8,12,3 --activation relu)
  equals_mlp(gelu_adamw RANKS ${ranks} PARTITION parameters
             OPTIONS ${training} --layers 5,40,7,7,64,3,2,2,6 --activation gelu --optimizer adamw --no-shuffle)
endforeach()
equals_mlp(no_activation RANKS 3 OPTIONS ${training} --layers 6,4,4,2 --weight-decay 0.1)
equals_mlp(parameters RANKS 2 PARTITION parameters OPTIONS --layers 3,128,1,70)
# One step with so long a stride that the parameters become -lr·gradient: the gradients, to the last bit.
foreach(ranks 2 3 8)
  equals_mlp(gradients RANKS ${ranks} OPTIONS --layers 16,24,9,24,17,8,8,12,3 --activation gelu --lr 1e9 --max-steps 1)
endforeach()

# ---- the ledger, as in the README ----------------------------------------------------------------------------------
# ledger_03(boundaries…): 100 samples in 4 batches, two epochs, on as many ranks as there are boundaries and one. The
# arguments are the widths of --layers 12,10,8,6,4 at the boundaries.
function(ledger_03)
  set(samples 100)
  set(batches 4)
  set(epochs 2)
  set(ledger)
  list(LENGTH ARGN last)
  math(EXPR ranks "${last} + 1")
  foreach(rank RANGE ${last})
    set(width 0)
    set(neighbours 0)
    if(rank GREATER 0)
      math(EXPR index "${rank} - 1")
      list(GET ARGN ${index} below)
      math(EXPR width "${width} + ${below}")
      math(EXPR neighbours "${neighbours} + 1")
    endif()
    if(rank LESS last)
      list(GET ARGN ${rank} above)
      math(EXPR width "${width} + ${above}")
      math(EXPR neighbours "${neighbours} + 1")
    endif()
    foreach(op ncclSend ncclRecv)
      set(losses 0)  # the last rank sends them to rank 0, once an epoch
      if(last GREATER 0 AND ((op STREQUAL ncclSend AND rank EQUAL last) OR (op STREQUAL ncclRecv AND rank EQUAL 0)))
        set(losses 1)
      endif()
      math(EXPR calls "${epochs} * (${neighbours} * ${batches} + ${losses})")
      math(EXPR bytes "4 * ${epochs} * (${samples} * ${width} + ${losses} * ${batches})")
      list(APPEND ledger ${rank} ${op} ${calls} ${bytes})
    endforeach()
  endforeach()
  workshop_test(solution.03.ledger.${ranks} LABELS solution
                COMMAND ${run_then} ${launch} -n ${ranks} -- ${model_parallel} --layers 12,10,8,6,4 --samples ${samples}
                        --epochs ${epochs} --record run.jsonl -- $<TARGET_FILE:check_ledger> run.jsonl ${ledger})
endfunction()
ledger_03()
ledger_03(8)
ledger_03(8 6)
ledger_03(10 8 6)

# ---- a step: nothing allocated, nothing waited for, and the README's memory ----------------------------------------
# On one rank what chapter 01's program holds.
workshop_test(solution.03.step.1 LABELS solution
              COMMAND ${run_then} ${model_parallel} --epochs 2 --record run.jsonl
                      -- $<TARGET_FILE:check_step> run.jsonl parameters=152 gradients=152 optimizer=0 activations=1792
                         buckets=0)
# 12,10,8,6,4 on three ranks: layers 0 and 1, layer 2, layer 3. Activations of 32 rows, 128 bytes a column: the outputs
# before and, but for the last layer, after the activation; two gradients of the widest output; and on the ranks that
# receive, input and its gradient.
workshop_test(solution.03.step.3 LABELS solution
              COMMAND ${run_then} ${launch} -n 3 -- ${model_parallel} --layers 12,10,8,6,4 --activation gelu
                      --optimizer adamw --epochs 2 --record run.jsonl
                      -- $<TARGET_FILE:check_step> run.jsonl buckets=0
                         0:parameters=872 0:gradients=872 0:optimizer=1744 0:activations=7168
                         1:parameters=216 1:gradients=216 1:optimizer=432 1:activations=5120
                         2:parameters=112 2:gradients=112 2:optimizer=224 2:activations=3072)

# ---- idle time -----------------------------------------------------------------------------------------------------
# Kernels that take a millisecond each, much more than everything else: the stages are equal but for the loss, the
# update and the activation that the last layer has not, a few kernels of 25 to 30 a step.
add_executable(check_idle ${CMAKE_CURRENT_LIST_DIR}/check_idle.cpp)
target_link_libraries(check_idle PRIVATE nlohmann_json::nlohmann_json)
target_compile_options(check_idle PRIVATE ${WORKSHOP_WARNINGS})
foreach(ranks 1 2 4)
  workshop_test(solution.03.idle.${ranks} MEASURES LABELS solution ENVIRONMENT WORKSHOP_SLOW=kernels
                COMMAND ${run_then} ${launch} -n ${ranks} -- ${model_parallel} --layers 8,8,8,8,8,8,8,8,8
                        --activation relu --max-steps 20 --record run.jsonl --timeline timeline.json
                        -- $<TARGET_FILE:check_idle> run.jsonl timeline.json 0.12)
endforeach()

# ---- bad input -----------------------------------------------------------------------------------------------------
# A ";" in the message would divide a CMake list: "." stands for it.
foreach(ranks 1 4)
  set(run RANKS ${ranks} PROGRAM ${model_parallel} --layers 9,8,7,6,5)
  bad_input(solution.03.bad.partition.${ranks} "--partition is 'even'. expected uniform, parameters" ${run}
            --partition even)
  bad_input(solution.03.bad.batch.${ranks} "--batch-size is '0'. expected a whole number of at least 1" ${run}
            --batch-size 0)
  bad_input(solution.03.bad.unknown.${ranks} "--micro-batches" ${run} --micro-batches 2)
endforeach()
bad_input(solution.03.bad.ranks.3 "--layers is '6,4,2', 2 layers for 3 ranks. expected a layer a rank or more" RANKS 3
          PROGRAM ${model_parallel})
bad_input(solution.03.bad.ranks.4 "--layers is '5,4,3,2', 3 layers for 4 ranks. expected" RANKS 4
          PROGRAM ${model_parallel} --layers 5,4,3,2 --partition parameters)
