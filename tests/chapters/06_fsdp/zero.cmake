# Chapter 06, zero: every stage trains what ddp trains.
#
# N ranks add up the same N gradients in ddp and at every stage, in another order at most: the order may depend on a
# value's place in the message, and a reduce-scatter's messages are not an all-reduce's. A mean of N ≤ 8 values is off by
# at most N·2⁻²⁴·M in whatever order, M being the largest of them, so two differ by at most 2·N·2⁻²⁴·M = 10⁻⁶·M, and
# T = 12 steps of SGD with lr = 0.01 pass 0.12 times that on to the parameters, and less to the losses. M < 10 for normal
# data: 1.2·10⁻⁶. AdamW divides a gradient by its own size, here at least M/1000: a relative error of 10⁻³ in it costs at
# most 2·10⁻³·lr a step, with lr = 0.001 2.4·10⁻⁵ in 12 steps. The tests ask for 5·10⁻⁵ of both; an update that is left
# out costs 10⁻³. Found: at most 7.5·10⁻⁹.
#
# On one rank nothing is added up, and a sum of two has one order: there not a bit differs.
set(bound 5e-5)
set(ddp $<TARGET_FILE:solution_02_ddp_ddp>)
set(zero $<TARGET_FILE:solution_06_fsdp_zero>)
set(launch ${CMAKE_SOURCE_DIR}/tools/launch)
set(run_then ${CMAKE_SOURCE_DIR}/tests/run_then)

# Units of 88, 144 and 65 values: 2 and 4 do not divide the last one, 3 not the first and the last, 8 not the last.
# Samples that no number of ranks but 1, 2 and 5 divides, and a last batch with fewer rows.
set(net --layers 7,11,12,5 --activation gelu --samples 250 --batch-size 12 --epochs 3 --max-steps 12 --log-every 0)
foreach(ranks 1 2 3 4 8)
  set(allowed BOUND ${bound})
  if(ranks LESS 3)
    set(allowed)
  endif()
  foreach(optimizer adamw sgd)
    set(run ${net} --optimizer ${optimizer})
    if(optimizer STREQUAL "adamw")
      list(APPEND run --lr 0.001)
    endif()
    foreach(stage 0 1 2 3)
      set(name solution.06.zero.equals_ddp.${optimizer}.stage${stage}.${ranks}ranks)
      same_training(${name} ${allowed} EXPECTED ${ranks} ${ddp} ${run} FOUND ${ranks} ${zero} ${run} --stage ${stage})
      # AdamW has the state to shard. Without it, as with SGD, three ranks show what there is to see.
      if(optimizer STREQUAL "sgd" AND NOT ranks EQUAL 3)
        set_tests_properties(${name} PROPERTIES LABELS "solution;soak")
      endif()
    endforeach()
  endforeach()
endforeach()
# Four batches of 8 rows and one update are one of 32; 100 samples a rank leave a last step of 4 rows. Stages 2 and 3
# average each batch before they add it up, ddp and stage 1 afterwards: another order, also on two ranks.
foreach(stage 1 2 3)
  set(run --samples 200 --epochs 3 --layers 7,11,12,5 --log-every 0)
  same_training(solution.06.zero.accumulation.stage${stage} BOUND ${bound}
                EXPECTED 2 ${ddp} ${run} --batch-size 32
                FOUND 2 ${zero} ${run} --batch-size 8 --accumulation-steps 4 --stage ${stage})
endforeach()

# ---- PyTorch's DistributedDataParallel -----------------------------------------------------------------------------
foreach(stage 0 1 2 3)
  workshop_test(golden.06.zero.ddp2_default.stage${stage} LABELS golden
                COMMAND ${run_then} ${launch} -n 2 -- ${zero} --stage ${stage} --record run.jsonl
                        -- $<TARGET_FILE:check_golden> ${CMAKE_SOURCE_DIR}/tests/golden/ddp2_default.json run.jsonl)
endforeach()
set(adamw --layers 16,32,8 --activation gelu --optimizer adamw --lr 0.001 --epochs 3)
workshop_test(golden.06.zero.ddp4_adamw.stage3 LABELS golden
              COMMAND ${run_then} ${launch} -n 4 -- ${zero} ${adamw} --stage 3 --record run.jsonl
                      -- $<TARGET_FILE:check_golden> ${CMAKE_SOURCE_DIR}/tests/golden/ddp4_adamw.json run.jsonl)

# ---- the ledger, as in the README ----------------------------------------------------------------------------------
# On 4 ranks units of 28 and 10 values have shards of 7 and 3; an epoch has 8 batches. What a rank sends is N - 1 = 3
# times the bytes of a reduce-scatter or an all-gather and 2·3/4 times those of an all-reduce. Of Ψ = 38 values, 40 with
# the padding: stage 0 sends 2·3/4·Ψ a step, stages 1 and 2 3·10 = 3/4·Ψ twice, stage 3 three times.
# zero_ledger(name options OP CALLS BYTES …)
function(zero_ledger name options)
  workshop_test(solution.06.zero.ledger.${name} LABELS solution
                COMMAND ${run_then} ${launch} -n 4 -- ${zero} ${options} --record run.jsonl
                        -- $<TARGET_FILE:check_ledger> run.jsonl ${ARGN})
endfunction()
# Stage 0: an all-reduce a unit and step. On all stages, one of the epoch's losses.
zero_ledger(stage0 "--stage;0" all ncclAllReduce 17 1248)
foreach(stage 1 2)  # a reduce-scatter and an all-gather a unit and step, and an all-gather a unit of the initial values
  zero_ledger(stage${stage} "--stage;${stage}" all ncclReduceScatter 16 320 all ncclAllGather 18 360
              all ncclAllReduce 1 32)
endforeach()
# Stage 3: two all-gathers a unit and step, and one of the final values.
zero_ledger(stage3 "--stage;3" all ncclReduceScatter 16 320 all ncclAllGather 34 680 all ncclAllReduce 1 32)
# Two steps of four batches: what stages 0 and 1 reduce a step, the others reduce a batch.
set(accumulation "--accumulation-steps;4")
zero_ledger(accumulation.stage0 "${accumulation};--stage;0" all ncclAllReduce 5 312)
zero_ledger(accumulation.stage1 "${accumulation};--stage;1" all ncclReduceScatter 4 80 all ncclAllGather 6 120
            all ncclAllReduce 1 8)
zero_ledger(accumulation.stage2 "${accumulation};--stage;2" all ncclReduceScatter 16 320 all ncclAllGather 6 120
            all ncclAllReduce 1 8)
zero_ledger(accumulation.stage3 "${accumulation};--stage;3" all ncclReduceScatter 16 320 all ncclAllGather 34 680
            all ncclAllReduce 1 8)

# ---- memory, and a step --------------------------------------------------------------------------------------------
# zero_memory(name RANKS n PSI n PADDED n LARGEST n OPTIONS …): the bytes of each kind are exactly those of the README's
# table, with AdamW, at every stage, and no step allocates or waits. PSI values, of all units PADDED with their padding,
# of the largest one LARGEST.
function(zero_memory name)
  cmake_parse_arguments(arg "" "RANKS;PSI;PADDED;LARGEST" "OPTIONS" ${ARGN})
  math(EXPR shard "4 * ${arg_PADDED} / ${arg_RANKS}")  # bytes of one value for each parameter, sharded
  math(EXPR state "2 * ${shard}")
  math(EXPR padded "4 * ${arg_PADDED}")
  math(EXPR whole "4 * ${arg_PSI}")
  math(EXPR whole_state "8 * ${arg_PSI}")
  math(EXPR one_unit "4 * ${arg_LARGEST}")
  math(EXPR two_units "8 * ${arg_LARGEST}")
  set(stage0 parameters=${whole} gradients=${whole} optimizer=${whole_state} buckets=0)
  set(stage1 parameters=${padded} gradients=${padded} optimizer=${state} buckets=0)
  set(stage2 parameters=${padded} gradients=${shard} optimizer=${state} buckets=${one_unit})
  set(stage3 parameters=${shard} gradients=${shard} optimizer=${state} buckets=${two_units})
  foreach(stage 0 1 2 3)
    workshop_test(solution.06.zero.memory.${name}.stage${stage}.${arg_RANKS}ranks LABELS solution
                  COMMAND ${run_then} ${launch} -n ${arg_RANKS} -- ${zero} --optimizer adamw ${arg_OPTIONS}
                          --stage ${stage} --max-steps 2 --accumulation-steps 2 --record run.jsonl
                          -- $<TARGET_FILE:check_step> run.jsonl ${stage${stage}})
  endforeach()
endfunction()
# 8 units of 32·33 = 1,056 values, which 1, 2, 4 and 8 divide: Ψ = 8,448 without padding.
foreach(ranks 1 2 4 8)
  zero_memory(even RANKS ${ranks} PSI 8448 PADDED 8448 LARGEST 1056 OPTIONS --layers 32,32,32,32,32,32,32,32,32)
endforeach()
# Units of 88, 144 and 65 values: 90, 144 and 66 on 3 ranks.
zero_memory(padded RANKS 3 PSI 297 PADDED 300 LARGEST 144 OPTIONS --layers 7,11,12,5)

# ---- bad input -----------------------------------------------------------------------------------------------------
foreach(ranks 1 4)
  set(run RANKS ${ranks} PROGRAM ${zero})
  foreach(stage 4 -1 two)
    bad_input(solution.06.zero.bad.stage.${stage}.${ranks} "--stage is '${stage}'. expected a whole number" ${run}
              --stage=${stage})
  endforeach()
  bad_input(solution.06.zero.bad.accumulation.${ranks} "--accumulation-steps is '0'. expected" ${run}
            --accumulation-steps 0)
  bad_input(solution.06.zero.bad.unknown.${ranks} "--bucket-mb" ${run} --bucket-mb 3)
endforeach()
